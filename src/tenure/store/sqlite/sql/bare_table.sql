-- bare_table: in a file beside the database, for measuring what one synced commit takes.
CREATE TABLE bare (id INTEGER PRIMARY KEY, body TEXT NOT NULL) STRICT;

-- bare_commit: one row of some 200 bytes.
INSERT INTO bare (body) VALUES (?);

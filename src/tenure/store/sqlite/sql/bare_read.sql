-- bare_read: a statement that reads nothing.
SELECT 1;

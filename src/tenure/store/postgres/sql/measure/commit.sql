-- commit: 200 bytes in the write-ahead log, which nobody reads. Its commit is synced like that of a row.
SELECT pg_catalog.pg_logical_emit_message(true, 'tenure bench', pg_catalog.repeat('x', 200));

-- litequeue: 0 is ready, 1 is locked, 2 is done. By value, so that the index on status serves it.
SELECT
    (SELECT count(*) FROM Queue WHERE status = 0)
    + (SELECT count(*) FROM Queue WHERE status = 1);

SELECT count(*)
FROM Queue
WHERE status = 2;

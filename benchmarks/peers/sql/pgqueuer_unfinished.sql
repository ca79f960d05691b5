-- pgqueuer deletes a job when it ends and writes a line to its log table.
SELECT count(*)
FROM pgqueuer;

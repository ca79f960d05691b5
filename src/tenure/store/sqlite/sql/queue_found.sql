-- queue_found: whether a queue of this name is there.
SELECT 1 FROM tenure_queue WHERE name = ?;

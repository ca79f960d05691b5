-- enqueue_found: whether a job of this id is there.
SELECT 1 FROM tenure_job WHERE id = ?;

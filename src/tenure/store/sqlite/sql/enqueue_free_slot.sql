-- enqueue_free_slot: the window of the job that had the slot is over.
UPDATE tenure_job SET dedup_slot = NULL WHERE id = ?;

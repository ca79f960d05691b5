-- revive: an ended job starts over, due at once. The token stays: it only ever rises, by the next claim.
UPDATE tenure_job
SET state = 'queued',
    attempt = 0,
    crashes = 0,
    run_at = :now,
    is_due = 1,
    dedup_slot = :slot,
    cancel_requested_at = NULL,
    finished_at = NULL,
    claimed_at = NULL,
    started_at = NULL,
    failure_class = NULL,
    updated_at = :now
WHERE id = :job_id AND state IN ('failed', 'dead', 'cancelled')
RETURNING queue;

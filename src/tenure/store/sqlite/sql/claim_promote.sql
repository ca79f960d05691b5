-- claim_promote: jobs whose time has come enter the claim's index, a bounded number at a time; a suspended job wakes by its time.
UPDATE tenure_job
SET is_due = 1,
    state = 'queued',
    waiting_for = NULL,
    updated_at = :now
WHERE rowid IN (
    SELECT rowid
    FROM tenure_job INDEXED BY job_due_idx
    WHERE is_due = 0 AND state IN ('queued', 'waiting') AND run_at <= :now
    ORDER BY run_at
    LIMIT :limit
)
RETURNING id, queue;

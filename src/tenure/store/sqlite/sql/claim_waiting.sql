-- claim_waiting: which of the jobs that claim_promote is about to take were suspended.
SELECT id
FROM (
    SELECT id, state
    FROM tenure_job INDEXED BY job_due_idx
    WHERE is_due = 0 AND state IN ('queued', 'waiting') AND run_at <= :now
    ORDER BY run_at
    LIMIT :limit
)
WHERE state = 'waiting';

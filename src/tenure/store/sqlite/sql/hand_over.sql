-- hand_over: a job as enqueue_at_once.sql makes it, granted as claim_at_once.sql would grant it: one row written once, inside a transaction.
-- No row means that nothing was done: another job may come first, a lease ran out, a job came due, its terms were read under another
-- stamp, or its id is taken. Then those two have their turn.
INSERT INTO tenure_job (
    id, payload, kind, queue, profile, priority, rank, max_attempts, run_at, is_due, created_at, updated_at,
    state, token, attempt, lease_owner, lease_until, claimed_at, started_at
)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 1, ?9, ?9,
    ?11, 1, 1, ?12, ?13, ?9, ?14
FROM tenure_stamp
WHERE stamp = ?10
    AND NOT EXISTS (SELECT 1 FROM tenure_job INDEXED BY job_claim_idx WHERE queue = ?4 AND state = 'queued' AND is_due = 1)
    AND NOT EXISTS (
        SELECT 1 FROM tenure_job INDEXED BY job_lease_idx WHERE state IN ('leased', 'running') AND lease_until <= ?9
    )
    AND NOT EXISTS (
        SELECT 1 FROM tenure_job INDEXED BY job_due_idx WHERE is_due = 0 AND state IN ('queued', 'waiting') AND run_at <= ?9
    )
ON CONFLICT DO NOTHING;

-- claim_at_once: claim_pick.sql and claim.sql for a few jobs as one statement that is its own transaction. No row means that nothing was
-- done: the terms were read under another stamp, a lease ran out, a job came due, or there is nothing; then the others have their turn.
-- The jobs are all found before the first is written.
UPDATE tenure_job
SET state = :state,
    token = token + 1,
    attempt = attempt + 1,
    lease_owner = :worker,
    lease_until = :lease_until,
    claimed_at = :now,
    started_at = coalesce(started_at, :started_at),
    updated_at = :now
WHERE rowid IN (
    SELECT rowid
    FROM tenure_job INDEXED BY job_claim_idx
    WHERE queue = :queue
        AND state = 'queued'
        AND is_due = 1
        AND (SELECT stamp FROM tenure_stamp) = :stamp
        AND NOT EXISTS (
            SELECT 1 FROM tenure_job INDEXED BY job_lease_idx WHERE state IN ('leased', 'running') AND lease_until <= :now
        )
        AND NOT EXISTS (
            SELECT 1 FROM tenure_job INDEXED BY job_due_idx WHERE is_due = 0 AND state IN ('queued', 'waiting') AND run_at <= :now
        )
    ORDER BY rank, run_at, id
    LIMIT :limit
)
RETURNING rank, run_at, id, kind, token, attempt, max_attempts, priority, crashes, payload,
    idempotency_key, progress, backoff, affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor, created_by_user_id,
    requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, artifacts_path;

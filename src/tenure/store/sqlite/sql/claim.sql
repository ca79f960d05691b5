-- claim: grant the first due jobs of one queue.
-- Invariant: `token` rises here and nowhere else, so whoever held the job before matches no row any more.
-- `attempt` is counted now, not at the end: a job that kills its worker still spends its budget.
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
    WHERE queue = :queue AND state = 'queued' AND is_due = 1
    ORDER BY rank, run_at, id
    LIMIT :limit
)
RETURNING rank, run_at, id, queue, kind, token, attempt, max_attempts, payload, priority, crashes, state, created_at,
    idempotency_key, progress, backoff, affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor,
    created_by_user_id, requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, artifacts_path;

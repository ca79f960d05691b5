-- claim_again: jobs that this worker holds without knowing it, because the reply to an earlier claim was lost.
-- The token stays: it is the same grant, handed over once more.
UPDATE tenure_job
SET lease_until = max(lease_until, :now + min(
        coalesce(:lease, (SELECT CAST(1000000 * lease_seconds AS INTEGER) FROM tenure_queue WHERE name = tenure_job.queue)),
        (SELECT CAST(1000000 * lease_max_seconds AS INTEGER) FROM tenure_queue WHERE name = tenure_job.queue)
    )),
    updated_at = :now
WHERE rowid IN (
    SELECT rowid
    FROM tenure_job INDEXED BY job_lease_idx
    WHERE state IN ('leased', 'running')
        AND lease_owner = :worker
        AND lease_until > :now
        AND id NOT IN (SELECT value FROM json_each(:held))
    ORDER BY claimed_at, id
    LIMIT :limit
)
RETURNING rank, run_at, id, queue, kind, token, attempt, max_attempts, payload, priority, crashes, state, created_at,
    idempotency_key, progress, backoff, affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor,
    created_by_user_id, requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, artifacts_path, lease_until;

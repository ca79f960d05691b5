-- claim_chosen: grant the jobs that were chosen among several queues or under limits. The same grant as in claim.sql.
UPDATE tenure_job
SET state = :state,
    token = token + 1,
    attempt = attempt + 1,
    lease_owner = :worker,
    lease_until = :lease_until,
    claimed_at = :now,
    started_at = coalesce(started_at, :started_at),
    updated_at = :now
WHERE rowid IN (SELECT value FROM json_each(:rowids))
    AND state = 'queued'
RETURNING rank, run_at, id, queue, kind, token, attempt, max_attempts, payload, priority, crashes, state, created_at,
    idempotency_key, progress, backoff, affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor,
    created_by_user_id, requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, artifacts_path;

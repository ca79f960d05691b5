-- jobs_by_id: jobs by id (a JSON array). The columns stand in the order of Job's fields.
SELECT
    id, queue, kind, state, priority, payload, run_at, attempt, max_attempts, crashes, token, created_at,
    updated_at, payload_hash, lease_owner, lease_until, idempotency_key, affinity_key, concurrency_key,
    cancel_requested_at, waiting_for, source_ref, target_ref, payload_ref, actor, created_by_user_id,
    requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, backoff, progress, result,
    result_summary, artifacts_path, last_error, failure_class, claimed_at, started_at, finished_at,
    cleaned_at
FROM tenure_job
WHERE id IN (SELECT value FROM json_each(:ids));

-- jobs_list_held: the same for what one worker holds.
SELECT
    id, queue, kind, state, priority, payload, run_at, attempt, max_attempts, crashes, token, created_at,
    updated_at, payload_hash, lease_owner, lease_until, idempotency_key, affinity_key, concurrency_key,
    cancel_requested_at, waiting_for, source_ref, target_ref, payload_ref, actor, created_by_user_id,
    requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, backoff, progress, result,
    result_summary, artifacts_path, last_error, failure_class, claimed_at, started_at, finished_at,
    cleaned_at
FROM tenure_job INDEXED BY job_lease_idx
WHERE state IN ('leased', 'running') AND lease_owner = :worker
    AND (:after IS NULL OR id < :after)
    AND (:workflow_id IS NULL OR workflow_id = :workflow_id)
    AND (:parent_id IS NULL OR parent_id = :parent_id)
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
    AND (:key IS NULL OR idempotency_key = :key)
    AND (:profile IS NULL OR profile = :profile)
    AND (:worker IS NULL OR lease_owner = :worker)
ORDER BY id DESC
LIMIT :limit;

-- claim_read: of jobs given by their rowids what claim_pick.sql tells, and the queue of each.
SELECT json_group_array(
    json_array(
        rank, run_at, id, kind, token, attempt, max_attempts, priority, crashes, CASE WHEN length(payload) <= 8000 THEN payload END,
        length(payload) <= 8000
        AND coalesce(
            idempotency_key, progress, backoff, affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor,
            created_by_user_id, requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, artifacts_path
        ) IS NULL,
        queue
    )
)
FROM tenure_job
WHERE rowid IN (SELECT value FROM json_each(:rowids));

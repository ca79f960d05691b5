-- claim_rest: of picked jobs that were not told whole: the payload, and the columns that most jobs leave empty.
SELECT id, payload, idempotency_key, progress, backoff, affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor,
    created_by_user_id, requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, artifacts_path
FROM tenure_job
WHERE id IN (SELECT value FROM json_each(:ids));

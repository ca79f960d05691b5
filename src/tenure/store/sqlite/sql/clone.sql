-- clone: a fresh job like one that ended, its child. It takes the key's slot only where the scope is active: a slot that
-- outlives its job stays with the original.
INSERT INTO tenure_job (
    id, kind, payload, queue, profile, priority, rank, max_attempts, run_at, is_due, created_at, updated_at,
    idempotency_key, dedup_slot, payload_hash, forbidden_keys,
    backoff, affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor, created_by_user_id,
    requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, artifacts_path
)
SELECT :new_id, j.kind, j.payload, j.queue, j.profile, j.priority,
    j.rank + CASE WHEN q.aging_seconds IS NULL THEN 0 ELSE :now - j.created_at END,
    j.max_attempts, :now, 1, :now, :now, j.idempotency_key,
    CASE
        WHEN j.idempotency_key IS NOT NULL AND q.key_scope = 'active' THEN
            'a|' || j.profile || char(31)
            || CASE q.key_space WHEN 'kind' THEN length(j.kind) || char(31) || j.kind ELSE '' END || char(31) || j.idempotency_key
    END,
    j.payload_hash, j.forbidden_keys,
    j.backoff, j.affinity_key, j.concurrency_key, j.source_ref, j.target_ref, j.payload_ref, j.actor, j.created_by_user_id,
    j.requested_by_user_id, j.tenant, j.workflow_id, j.id, j.run_id, j.trace, NULL
FROM tenure_job AS j
JOIN tenure_queue AS q ON q.name = j.queue
WHERE j.id = :job_id
ON CONFLICT DO NOTHING;

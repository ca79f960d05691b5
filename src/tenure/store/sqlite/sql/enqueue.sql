-- enqueue: one job. No row changed means that its id or its slot is taken: the unique indexes decide, never a look beforehand.
INSERT INTO tenure_job (
    id, payload, kind, queue, profile, priority, rank, max_attempts, run_at, is_due, created_at, updated_at,
    idempotency_key, dedup_slot, payload_hash, forbidden_keys,
    backoff, affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor, created_by_user_id,
    requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, artifacts_path
)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- queues: every queue by name, or those asked for (a JSON array).
SELECT
    name, profile, priority_order, priority_default, aging_seconds, start_on_claim, max_attempts,
    backoff_shape, backoff_base_seconds, backoff_power, backoff_factor, backoff_cap_seconds, backoff_jitter,
    lease_seconds, lease_max_seconds, key_scope, key_space, key_required, key_window_seconds, key_conflict,
    revive, on_unknown_kind, forbidden_keys, concurrency, concurrency_per_key, retain_seconds, events, paused_at,
    paused_by, created_at, updated_at
FROM tenure_queue
WHERE (:names IS NULL OR name IN (SELECT value FROM json_each(:names)))
ORDER BY name;

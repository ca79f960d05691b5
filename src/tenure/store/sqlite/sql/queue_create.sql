-- queue_create: a queue with its policy, unless there is one of that name. No row changed: it was there.
INSERT INTO tenure_queue (
    name, profile, priority_order, priority_default, aging_seconds, start_on_claim, max_attempts,
    backoff_shape, backoff_base_seconds, backoff_power, backoff_factor, backoff_cap_seconds, backoff_jitter,
    lease_seconds, lease_max_seconds, key_scope, key_space, key_required, key_window_seconds, key_conflict,
    revive, on_unknown_kind, forbidden_keys, concurrency, concurrency_per_key, retain_seconds, events,
    created_at, updated_at
)
VALUES (
    :name, :profile, :priority_order, :priority_default, :aging_seconds, :start_on_claim, :max_attempts,
    :backoff_shape, :backoff_base_seconds, :backoff_power, :backoff_factor, :backoff_cap_seconds, :backoff_jitter,
    :lease_seconds, :lease_max_seconds, :key_scope, :key_space, :key_required, :key_window_seconds, :key_conflict,
    :revive, :on_unknown_kind, :forbidden_keys, :concurrency, :concurrency_per_key, :retain_seconds, :events,
    :now, :now
)
ON CONFLICT (name) DO NOTHING;

-- queue_set: create a queue or replace its policy. Whether it is paused stays as it is.
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
ON CONFLICT (name) DO UPDATE
SET profile = excluded.profile,
    priority_order = excluded.priority_order,
    priority_default = excluded.priority_default,
    aging_seconds = excluded.aging_seconds,
    start_on_claim = excluded.start_on_claim,
    max_attempts = excluded.max_attempts,
    backoff_shape = excluded.backoff_shape,
    backoff_base_seconds = excluded.backoff_base_seconds,
    backoff_power = excluded.backoff_power,
    backoff_factor = excluded.backoff_factor,
    backoff_cap_seconds = excluded.backoff_cap_seconds,
    backoff_jitter = excluded.backoff_jitter,
    lease_seconds = excluded.lease_seconds,
    lease_max_seconds = excluded.lease_max_seconds,
    key_scope = excluded.key_scope,
    key_space = excluded.key_space,
    key_required = excluded.key_required,
    key_window_seconds = excluded.key_window_seconds,
    key_conflict = excluded.key_conflict,
    revive = excluded.revive,
    on_unknown_kind = excluded.on_unknown_kind,
    forbidden_keys = excluded.forbidden_keys,
    concurrency = excluded.concurrency,
    concurrency_per_key = excluded.concurrency_per_key,
    retain_seconds = excluded.retain_seconds,
    events = excluded.events,
    updated_at = excluded.updated_at;

-- Finished jobs as Tenure leaves them.
INSERT INTO tenure.job (
    id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, state, queue, kind, profile, payload,
    claimed_at, started_at, finished_at, token, attempt
)
SELECT
    ('01800000-' || lpad(to_hex(n / 65536), 4, '0') || '-7' || lpad(to_hex(n % 65536 / 16), 3, '0')
        || '-8' || lpad(to_hex(n % 16), 3, '0') || '-000000000000')::uuid,
    0, now() - interval '1 hour', now() - interval '1 hour', now() - interval '1 hour', 0, 3, true, 'succeeded', 'default', 'noop',
    'default', $1::json, now() - interval '1 hour', now() - interval '1 hour', now() - interval '1 hour', 1, 1
FROM generate_series(1, $2::integer) AS n

-- Waiting jobs as `enqueue` leaves them: $1 jobs over $2 priorities, due $3 seconds from now (0 is due).
INSERT INTO tenure.job (
    id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, state, queue, kind, profile, payload
)
SELECT
    ('01900000-' || lpad(to_hex(n / 65536), 4, '0') || '-7' || lpad(to_hex(n % 65536 / 16), 3, '0')
        || '-8' || lpad(to_hex(n % 16), 3, '0') || '-000000000000')::uuid,
    -(n % $2::integer), now() + $3::integer * interval '1 second', now(), now(), n % $2::integer, 3, $3::integer = 0,
    'queued', 'default', 'noop', 'default', ('{"i":' || n || ',"pad":"' || repeat('x', 180) || '"}')::json
FROM generate_series(0, $1::integer - 1) AS n

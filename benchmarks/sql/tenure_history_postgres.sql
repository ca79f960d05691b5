-- Finished jobs as Tenure leaves them, with payloads of several lengths: rows of one length would leave the same rest on every page,
-- and if a new job happens to fit into it, each new job has a page of its own.
INSERT INTO tenure.job (
    id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, state, queue, kind, profile, payload,
    claimed_at, started_at, finished_at, token, attempt
)
SELECT
    ('01800000-' || lpad(to_hex(n / 65536), 4, '0') || '-7' || lpad(to_hex(n % 65536 / 16), 3, '0')
        || '-8' || lpad(to_hex(n % 16), 3, '0') || '-000000000000')::uuid,
    0, now() - interval '1 hour', now() - interval '1 hour', now() - interval '1 hour', 0, 3, true, 'succeeded', 'default', 'noop',
    'default', json_build_object('i', n, 'pad', repeat('x', 100 + n % 161)),
    now() - interval '1 hour', now() - interval '1 hour', now() - interval '1 hour', 1, 1
FROM generate_series(1, $1::integer) AS n

-- Statements on Tenure's own tables on PostgreSQL, past its API: large fills in one statement, and cheap counts.

-- name: backlog
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

-- name: history
-- $1 finished jobs. Payloads of several lengths: rows of one length would leave the same gap on every page, and if a
-- new job happens to fit into it, each new job lands on a page of its own.
INSERT INTO tenure.job (
    id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, state, queue, kind, profile, payload,
    claimed_at, started_at, finished_at, token, attempt
)
SELECT
    ('01800000-' || lpad(to_hex(n / 65536), 4, '0') || '-7' || lpad(to_hex(n % 65536 / 16), 3, '0')
        || '-8' || lpad(to_hex(n % 16), 3, '0') || '-000000000000')::uuid,
    0, past, past, past, 0, 3, true, 'succeeded', 'default', 'noop', 'default',
    json_build_object('i', n, 'pad', repeat('x', 100 + n % 161)), past, past, past, 1, 1
FROM generate_series(1, $1::integer) AS n, (VALUES (now() - interval '1 hour')) AS moment (past)

-- name: unfinished
-- Live jobs, each state by the index that holds it; jobs due tomorrow do not count.
SELECT
    (SELECT count(*) FROM tenure.job WHERE state = 'queued' AND is_due)
    + (SELECT count(*) FROM tenure.job
        WHERE NOT is_due AND state IN ('queued', 'waiting') AND run_at <= now() + interval '1 hour')
    + (SELECT count(*) FROM tenure.job WHERE state IN ('leased', 'running'))

-- name: finished
SELECT count(*) FROM tenure.job WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND state = 'succeeded'

-- name: workers
SELECT count(*) FROM tenure.worker

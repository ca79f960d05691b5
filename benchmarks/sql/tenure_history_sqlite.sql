-- Finished jobs as Tenure leaves them, with payloads of several lengths. :now is in microseconds.
WITH RECURSIVE series(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < :jobs)
INSERT INTO tenure_job (
    id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, state, queue, kind, profile, payload,
    claimed_at, started_at, finished_at, token, attempt
)
SELECT
    printf('01800000-%04x-7%03x-8%03x-000000000000', n / 65536, n % 65536 / 16, n % 16),
    0, :now, :now, :now, 0, 3, 1, 'succeeded', 'default', 'noop', 'default',
    json_object('i', n, 'pad', printf('%.*c', 100 + n % 161, 'x')), :now, :now, :now, 1, 1
FROM series

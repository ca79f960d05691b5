-- Waiting jobs as `enqueue` leaves them: :jobs over :priorities, due :delay microseconds after :now (0 is due).
WITH RECURSIVE series (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM series WHERE n < :jobs - 1)
INSERT INTO tenure_job (
    id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, state, queue, kind, profile, payload
)
SELECT
    printf('01900000-%04x-7%03x-8%03x-000000000000', n / 65536, n % 65536 / 16, n % 16),
    -(n % :priorities), :now + :delay, :now, :now, n % :priorities, 3, :delay = 0, 'queued', 'default', 'noop',
    'default', '{"i":' || n || ',"pad":"' || :pad || '"}'
FROM series

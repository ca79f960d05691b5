-- profile_fill: :rows jobs of one profile, in the same proportions as on PostgreSQL.
WITH RECURSIVE
    numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :rows),
    g AS (
        SELECT n, :now - CAST(2592000000000.0 * (1 - CAST(n AS REAL) / :rows) AS INTEGER) AS at, CASE
            WHEN n % 1000 < 10 THEN 'due'
            WHEN n % 1000 < 12 THEN 'later'
            WHEN n % 1000 < 14 THEN 'retry'
            WHEN n % 1000 < 15 THEN 'held'
            WHEN n % 1000 < 25 THEN 'bad'
            WHEN n % 1000 < 125 THEN 'cleaned'
            ELSE 'good'
        END AS stage
        FROM numbers
    )
INSERT INTO tenure_job (
    id, token, rank, run_at, created_at, updated_at, lease_until, claimed_at, started_at, finished_at, cleaned_at, priority, attempt,
    max_attempts, is_due, state, queue, kind, profile, payload, lease_owner, idempotency_key, actor, last_error, failure_class
)
SELECT
    printf('%08x-%04x-7%03x-8%03x-%012x', g.at / 1000 / 65536, g.at / 1000 % 65536, g.n % 4096, g.n / 4096 % 4096, g.n), min(g.n, 1), g.n % 4,
    CASE g.stage WHEN 'later' THEN :now + 3600000000 WHEN 'retry' THEN :now + 60000000 ELSE g.at END,
    g.at, g.at,
    CASE WHEN g.stage = 'held' THEN :now + 60000000 END,
    CASE WHEN g.stage NOT IN ('due', 'later') THEN g.at END,
    CASE WHEN g.stage NOT IN ('due', 'later') THEN g.at END,
    CASE WHEN g.stage IN ('bad', 'cleaned', 'good') THEN g.at + 1000000 END,
    CASE WHEN g.stage = 'cleaned' THEN g.at + 86400000000 END,
    g.n % 4,
    CASE WHEN g.stage IN ('due', 'later') THEN 0 ELSE 1 END,
    5, g.stage NOT IN ('later', 'retry'),
    CASE g.stage WHEN 'held' THEN 'running' WHEN 'bad' THEN CASE g.n / 1000 % 3 WHEN 0 THEN 'dead' WHEN 1 THEN 'failed' ELSE 'cancelled' END
        WHEN 'cleaned' THEN 'succeeded' WHEN 'good' THEN 'succeeded' ELSE 'queued' END,
    :queue, CASE WHEN g.n % 20000 = 777 THEN 'rare' ELSE 'kind' || (g.n / 7 % 10) END, :profile,
    CASE WHEN g.stage <> 'cleaned' THEN '{"unit": 7, "path": "some/where/else.txt"}' END,
    CASE WHEN g.stage = 'held' THEN 'host-1-a' END,
    'key-' || g.n, 'ada',
    CASE WHEN g.stage IN ('bad', 'retry') THEN 'KeyError: unit' END,
    CASE WHEN g.stage IN ('bad', 'retry') THEN 'error' END
FROM g;

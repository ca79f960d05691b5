-- profile_fill: %(rows)s jobs of one profile, as a queue looks that has run for a month. Of 1,000: 10 due, 2 for later, 2 to be retried, 1 held,
-- 10 ended badly, 100 cleaned, the others ended well. Eleven kinds; one of them is rare.
INSERT INTO tenure.job (
    id, token, rank, run_at, created_at, updated_at, lease_until, claimed_at, started_at, finished_at, cleaned_at, priority, attempt,
    max_attempts, is_due, state, queue, kind, profile, payload, lease_owner, idempotency_key, actor, last_error, failure_class
)
SELECT
    gen_random_uuid(), least(g.n, 1), g.n %% 4,
    CASE g.stage WHEN 'later' THEN tenure.now() + interval '1 hour' WHEN 'retry' THEN tenure.now() + interval '1 minute' ELSE g.at END,
    g.at, g.at,
    CASE WHEN g.stage = 'held' THEN tenure.now() + interval '1 minute' END,
    CASE WHEN g.stage NOT IN ('due', 'later') THEN g.at END,
    CASE WHEN g.stage NOT IN ('due', 'later') THEN g.at END,
    CASE WHEN g.stage IN ('bad', 'cleaned', 'good') THEN g.at + interval '1 second' END,
    CASE WHEN g.stage = 'cleaned' THEN g.at + interval '1 day' END,
    g.n %% 4,
    CASE WHEN g.stage IN ('due', 'later') THEN 0 ELSE 1 END,
    5, g.stage NOT IN ('later', 'retry'),
    CASE g.stage WHEN 'held' THEN 'running' WHEN 'bad' THEN (ARRAY['dead', 'failed', 'cancelled'])[1 + g.n / 1000 %% 3]
        WHEN 'cleaned' THEN 'succeeded' WHEN 'good' THEN 'succeeded' ELSE 'queued' END,
    %(queue)s, CASE WHEN g.n %% 20000 = 777 THEN 'rare' ELSE 'kind' || g.n / 7 %% 10 END, %(profile)s,
    CASE WHEN g.stage <> 'cleaned' THEN '{"unit": 7, "path": "some/where/else.txt"}'::json END,
    CASE WHEN g.stage = 'held' THEN 'host-1-a' END,
    'key-' || g.n, 'ada',
    CASE WHEN g.stage IN ('bad', 'retry') THEN 'KeyError: unit' END,
    CASE WHEN g.stage IN ('bad', 'retry') THEN 'error' END
FROM (
    SELECT n, tenure.now() - interval '30 days' * (1 - n::double precision / %(rows)s) AS at, CASE
        WHEN n %% 1000 < 10 THEN 'due'
        WHEN n %% 1000 < 12 THEN 'later'
        WHEN n %% 1000 < 14 THEN 'retry'
        WHEN n %% 1000 < 15 THEN 'held'
        WHEN n %% 1000 < 25 THEN 'bad'
        WHEN n %% 1000 < 125 THEN 'cleaned'
        ELSE 'good'
    END AS stage
    FROM generate_series(1, %(rows)s) AS n
) AS g

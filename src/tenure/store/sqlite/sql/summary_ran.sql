-- summary_ran: what ended within the window, by queue and kind, and how long the successes ran and had waited.
-- A percentile is the smallest value that at least that share of the values does not exceed.
WITH ended AS (
    SELECT queue, kind, state, finished_at,
        finished_at - claimed_at AS run,
        max(claimed_at - run_at, 0) AS wait
    FROM tenure_job INDEXED BY job_finished_idx
    WHERE finished_at IS NOT NULL
        AND cleaned_at IS NULL
        AND finished_at > :since
        AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
),
ranked AS (
    SELECT queue, kind, run, wait,
        row_number() OVER (PARTITION BY queue, kind ORDER BY run) AS by_run,
        row_number() OVER (PARTITION BY queue, kind ORDER BY wait) AS by_wait,
        count(*) OVER (PARTITION BY queue, kind) AS jobs
    FROM ended
    WHERE state = 'succeeded'
),
took AS (
    SELECT queue, kind,
        avg(run) AS average,
        max(CASE WHEN by_run = (jobs * 50 + 99) / 100 THEN run END) AS run_p50,
        max(CASE WHEN by_run = (jobs * 95 + 99) / 100 THEN run END) AS run_p95,
        max(run) AS run_max,
        max(CASE WHEN by_wait = (jobs * 50 + 99) / 100 THEN wait END) AS wait_p50
    FROM ranked
    GROUP BY queue, kind
)
SELECT e.queue, e.kind,
    sum(e.state = 'succeeded'), sum(e.state = 'failed'), sum(e.state = 'dead'), sum(e.state = 'cancelled'),
    t.average / 1e6, t.run_p50 / 1e6, t.run_p95 / 1e6, t.run_max / 1e6, t.wait_p50 / 1e6,
    max(e.finished_at)
FROM ended AS e
LEFT JOIN took AS t ON t.queue = e.queue AND t.kind = e.kind
GROUP BY e.queue, e.kind
ORDER BY e.queue, e.kind;

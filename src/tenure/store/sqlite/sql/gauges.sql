-- What monitors and autoscalers read: bounded counts, and counters that only rise. See store/gauges.py.

-- name: queues
-- The queues, or one of them.
SELECT name, paused_at IS NOT NULL
FROM tenure_queue
WHERE :queue IS NULL OR name = :queue
ORDER BY name;

-- name: ready
-- How many jobs are claimable, at most :cap of each list, and the earliest run_at among those that were looked at.
SELECT count(*), min(run_at)
FROM (
    SELECT *
    FROM (
        SELECT run_at FROM tenure_job INDEXED BY job_claim_idx
        WHERE queue = :queue AND state = 'queued' AND is_due = 1 AND suspicion < 2
        LIMIT :cap
    )
    UNION ALL
    SELECT *
    FROM (
        SELECT run_at FROM tenure_job INDEXED BY job_suspect_idx
        WHERE queue = :queue AND state = 'queued' AND is_due = 1 AND suspicion >= 2
        LIMIT :cap
    )
);

-- name: oldest_head
-- The earliest run_at at the head of each rank, list by list: a queue has one for the jobs without a limiter and one for each limiter. Each
-- list and each rank is found by one look behind the one before. The first thousand lists are looked at, and a thousand ranks in all,
-- divided among them; of each list at least the first.
WITH RECURSIVE list (limiter, nth) AS (
    SELECT NULL, 1
    UNION ALL
    SELECT (
        SELECT j.limiter FROM tenure_job AS j INDEXED BY job_claim_idx
        WHERE j.queue = :queue AND j.state = 'queued' AND j.is_due = 1 AND j.suspicion < 2 AND j.limiter > coalesce(list.limiter, '')
        ORDER BY j.limiter
        LIMIT 1
    ), nth + 1
    FROM list
    WHERE (nth = 1 OR limiter IS NOT NULL) AND nth < 1000
),
head (limiter, rank, nth) AS (
    SELECT list.limiter, (
        SELECT j.rank FROM tenure_job AS j INDEXED BY job_claim_idx
        WHERE j.queue = :queue AND j.limiter IS list.limiter AND j.state = 'queued' AND j.is_due = 1 AND j.suspicion < 2
        ORDER BY j.rank
        LIMIT 1
    ), 1
    FROM list
    WHERE list.nth = 1 OR list.limiter IS NOT NULL
    UNION ALL
    SELECT head.limiter, (
        SELECT j.rank FROM tenure_job AS j INDEXED BY job_claim_idx
        WHERE j.queue = :queue AND j.limiter IS head.limiter AND j.state = 'queued' AND j.is_due = 1 AND j.suspicion < 2
            AND j.rank > head.rank
        ORDER BY j.rank
        LIMIT 1
    ), nth + 1
    FROM head
    WHERE head.rank IS NOT NULL AND nth < (SELECT 1000 / count(*) FROM list)
)
SELECT min((
    SELECT j.run_at FROM tenure_job AS j INDEXED BY job_claim_idx
    WHERE j.queue = :queue AND j.limiter IS head.limiter AND j.rank = head.rank AND j.state = 'queued' AND j.is_due = 1
        AND j.suspicion < 2
    ORDER BY j.run_at
    LIMIT 1
))
FROM head;

-- name: late
-- Jobs whose time came while no worker made them claimable: among the first :cap of them those of this queue.
SELECT count(*), min(run_at)
FROM (
    SELECT queue, run_at FROM tenure_job INDEXED BY job_due_idx
    WHERE is_due = 0 AND state IN ('queued', 'waiting') AND run_at <= :now
    ORDER BY run_at
    LIMIT :cap
)
WHERE queue = :queue;

-- name: held
-- How many jobs of a queue are held.
SELECT count(*)
FROM (
    SELECT queue FROM tenure_job INDEXED BY job_lease_idx
    WHERE state IN ('leased', 'running')
    ORDER BY lease_until
    LIMIT :cap
)
WHERE queue = :queue;

-- name: delayed
-- Jobs that are queued for later.
SELECT count(*)
FROM (
    SELECT 1 FROM tenure_job INDEXED BY job_due_idx
    WHERE is_due = 0 AND state IN ('queued', 'waiting') AND state = 'queued' AND run_at > :now
    LIMIT :cap
);

-- name: leases_run_out
-- Held jobs whose lease is over.
SELECT count(*)
FROM (
    SELECT 1 FROM tenure_job INDEXED BY job_lease_idx
    WHERE state IN ('leased', 'running') AND lease_until < :now
    LIMIT :cap
);

-- name: dead_letters
-- Dead letters of one triage.
SELECT count(*)
FROM (SELECT 1 FROM tenure_dead_letter INDEXED BY dead_letter_triage_idx WHERE triage = :triage LIMIT :cap);

-- name: totals
-- The counters of the queues that exist.
SELECT t.queue, t.what, t.part, t.n
FROM tenure_metric_total AS t
CROSS JOIN tenure_queue AS q ON q.name = t.queue
ORDER BY t.queue, t.what, t.part;

-- name: name_kinds
-- The most frequent of the kinds that are new get the places that are left.
INSERT INTO tenure_metric_kind (kind)
SELECT e.kind
FROM (
    SELECT queue, kind FROM tenure_job INDEXED BY job_finished_idx
    WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND state IN ('succeeded', 'cancelled') AND finished_at >= :after AND finished_at < :until
    UNION ALL
    SELECT queue, kind FROM tenure_job INDEXED BY job_cleaned_idx
    WHERE cleaned_at IS NOT NULL AND state IN ('succeeded', 'cancelled') AND finished_at >= :after AND finished_at < :until
    UNION ALL
    SELECT queue, kind FROM tenure_dead_letter INDEXED BY dead_letter_triage_idx
    WHERE triage IN ('pending', 'acknowledged', 'manual_replay', 'escalated', 'closed') AND moved_at >= :after AND moved_at < :until
) AS e
CROSS JOIN tenure_queue AS q ON q.name = e.queue
WHERE NOT EXISTS (SELECT 1 FROM tenure_metric_kind AS k WHERE k.kind = e.kind)
GROUP BY e.kind
ORDER BY count(*) DESC, e.kind
LIMIT max(0, 200 - (SELECT count(*) FROM tenure_metric_kind));

-- name: add_totals
-- Add what was counted from :after until just before :until.
INSERT INTO tenure_metric_total (queue, what, part, n)
SELECT c.queue, c.what, c.part, sum(c.n) AS n
FROM (
    SELECT e.queue, e.what, coalesce((SELECT k.kind FROM tenure_metric_kind AS k WHERE k.kind = e.kind), '') AS part, 1 AS n
    FROM (
        SELECT queue, kind, state AS what FROM tenure_job INDEXED BY job_finished_idx
        WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND state IN ('succeeded', 'cancelled')
            AND finished_at >= :after AND finished_at < :until
        UNION ALL
        SELECT queue, kind, state FROM tenure_job INDEXED BY job_cleaned_idx
        WHERE cleaned_at IS NOT NULL AND state IN ('succeeded', 'cancelled') AND finished_at >= :after AND finished_at < :until
        UNION ALL
        SELECT queue, kind, state FROM tenure_dead_letter INDEXED BY dead_letter_triage_idx
        WHERE triage IN ('pending', 'acknowledged', 'manual_replay', 'escalated', 'closed') AND moved_at >= :after AND moved_at < :until
    ) AS e
    UNION ALL
    SELECT e.queue, w.value, '', max(0, CASE w.value WHEN 'run_us' THEN e.finished_at - e.claimed_at ELSE e.claimed_at - e.run_at END)
    FROM (
        SELECT queue, run_at, claimed_at, finished_at FROM tenure_job INDEXED BY job_finished_idx
        WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND state = 'succeeded' AND finished_at >= :after AND finished_at < :until
        UNION ALL
        SELECT queue, run_at, claimed_at, finished_at FROM tenure_job INDEXED BY job_cleaned_idx
        WHERE cleaned_at IS NOT NULL AND state = 'succeeded' AND finished_at >= :after AND finished_at < :until
    ) AS e
    CROSS JOIN json_each('["run_us", "wait_us"]') AS w
    UNION ALL
    SELECT m.queue, w.value, '', CASE w.value WHEN 'created' THEN m.created WHEN 'retried' THEN m.retried ELSE m.expired END
    FROM tenure_metric AS m
    CROSS JOIN json_each('["created", "retried", "expired"]') AS w
    WHERE m.minute >= :after AND m.minute < :until
    UNION ALL
    SELECT queue, what, part, n FROM tenure_metric_part
    WHERE span = 'minute' AND at >= :after AND at < :until AND what IN ('run', 'wait')
) AS c
CROSS JOIN tenure_queue AS q ON q.name = c.queue
WHERE true
GROUP BY c.queue, c.what, c.part
HAVING sum(c.n) > 0
ON CONFLICT (queue, what, part) DO UPDATE SET n = n + excluded.n;

-- name: usage
-- What the database holds, each count up to :cap. A page that is free takes no room that a new row could not have.
SELECT
    (
        SELECT count(*)
        FROM (
            SELECT *
            FROM (SELECT 1 FROM tenure_job INDEXED BY job_claim_idx WHERE state = 'queued' AND is_due = 1 AND suspicion < 2 LIMIT :cap)
            UNION ALL
            SELECT *
            FROM (SELECT 1 FROM tenure_job INDEXED BY job_suspect_idx WHERE state = 'queued' AND is_due = 1 AND suspicion >= 2 LIMIT :cap)
            UNION ALL
            SELECT *
            FROM (
                SELECT 1 FROM tenure_job INDEXED BY job_due_idx
                WHERE is_due = 0 AND state IN ('queued', 'waiting') AND state = 'queued'
                LIMIT :cap
            )
        )
    ) AS queued,
    (SELECT count(*) FROM (SELECT 1 FROM tenure_queue LIMIT :cap)) AS queues,
    (SELECT count(*) FROM (SELECT 1 FROM tenure_api_token WHERE revoked_at IS NULL AND expires_at > :now LIMIT :cap)) AS tokens,
    (SELECT (c.page_count - f.freelist_count) * s.page_size FROM pragma_page_count AS c, pragma_freelist_count AS f, pragma_page_size AS s);

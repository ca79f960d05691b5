-- Minutes that are counted, and the hours and days they are folded into.

-- name: mark
-- Up to where minutes are counted, and hours and days folded.
SELECT counted_until, hour_until, day_until FROM tenure_metric_mark;

-- name: move_mark
-- Every minute before :counted is counted, every hour before :hour and day before :day folded.
UPDATE tenure_metric_mark SET counted_until = :counted, hour_until = :hour, day_until = :day;

-- name: full_at
-- When the first job beyond :most of one sort was made or ended, from :after until just before :until; null if there are no more.
SELECT min(at)
FROM (
    SELECT * FROM (
        SELECT created_at AS at
        FROM tenure_job
        WHERE id >= printf('%08x-%04x', :after / 1000 >> 16, :after / 1000 & 65535)
            AND id < printf('%08x-%04x', :until / 1000 >> 16, :until / 1000 & 65535)
        ORDER BY id
        LIMIT 1 OFFSET :most
    )
    UNION ALL
    SELECT * FROM (
        SELECT finished_at
        FROM tenure_job INDEXED BY job_finished_idx
        WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND finished_at >= :after AND finished_at < :until
        ORDER BY finished_at
        LIMIT 1 OFFSET :most
    )
    UNION ALL
    SELECT * FROM (
        SELECT finished_at
        FROM tenure_job INDEXED BY job_cleaned_idx
        WHERE cleaned_at IS NOT NULL AND finished_at >= :after AND finished_at < :until
        ORDER BY finished_at
        LIMIT 1 OFFSET :most
    )
    UNION ALL
    SELECT * FROM (
        SELECT ended_at
        FROM tenure_attempt INDEXED BY attempt_ended_idx
        WHERE ended_at >= :after AND ended_at < :until
        ORDER BY ended_at
        LIMIT 1 OFFSET :most
    )
);

-- name: count
-- Write what happened from :after until just before :until. Created jobs are found by the time in their ids, a UUIDv7's first 48 bits of
-- milliseconds, with a minute of patience for clocks that differ, and ids of another sort by an index of their own; deaths by their
-- letters, since a job that was revived no longer tells of its death; failed attempts by theirs. Workers' silence is known of the present
-- only, and booked to no minute that was over before the worker began.
INSERT INTO tenure_metric (
    minute, queue, profile, created, completed, failed, attempts_failed, retried, expired, cancelled, latency_seconds, busy_seconds,
    heartbeat_delay_seconds
)
SELECT h.at / :minute * :minute AS minute, h.queue, q.profile,
    sum(h.what = 'created'),
    sum(h.what = 'completed'),
    sum(h.what = 'failed'),
    sum(h.what IN ('retried', 'expired', 'ended')),
    sum(h.what = 'retried'),
    sum(h.what = 'expired'),
    sum(h.what = 'cancelled'),
    total(CASE WHEN h.what = 'completed' THEN max(h.us, 0) / 1e6 END),
    total(max(h.busy, 0) / 1e6),
    max(CASE WHEN h.what = 'silence' THEN max(h.us, 0) / 1e6 END)
FROM (
    SELECT 'created' AS what, created_at AS at, queue, 0 AS us, 0 AS busy
    FROM tenure_job
    WHERE id >= printf('%08x-%04x', (:after - :minute) / 1000 >> 16, (:after - :minute) / 1000 & 65535)
        AND id < printf('%08x-%04x', (:until + :minute) / 1000 >> 16, (:until + :minute) / 1000 & 65535)
        AND substr(id, 15, 1) = '7' AND created_at >= :after AND created_at < :until
    UNION ALL
    SELECT 'created', created_at, queue, 0, 0
    FROM tenure_job INDEXED BY job_created_idx
    WHERE substr(id, 15, 1) <> '7' AND created_at >= :after AND created_at < :until
    UNION ALL
    SELECT CASE state WHEN 'succeeded' THEN 'completed' ELSE 'cancelled' END, finished_at, queue, finished_at - created_at,
        CASE state WHEN 'succeeded' THEN finished_at - claimed_at ELSE 0 END
    FROM tenure_job INDEXED BY job_finished_idx
    WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND state IN ('succeeded', 'cancelled') AND finished_at >= :after AND finished_at < :until
    UNION ALL
    SELECT CASE state WHEN 'succeeded' THEN 'completed' ELSE 'cancelled' END, finished_at, queue, finished_at - created_at,
        CASE state WHEN 'succeeded' THEN finished_at - claimed_at ELSE 0 END
    FROM tenure_job INDEXED BY job_cleaned_idx
    WHERE cleaned_at IS NOT NULL AND state IN ('succeeded', 'cancelled') AND finished_at >= :after AND finished_at < :until
    UNION ALL
    SELECT 'failed', moved_at, queue, 0, 0
    FROM tenure_dead_letter INDEXED BY dead_letter_triage_idx
    WHERE triage IN ('pending', 'acknowledged', 'manual_replay', 'escalated', 'closed') AND moved_at >= :after AND moved_at < :until
    UNION ALL
    SELECT CASE a.outcome WHEN 'retried' THEN 'retried' WHEN 'expired' THEN 'expired' WHEN 'dead' THEN 'ended' WHEN 'failed' THEN 'ended'
        ELSE 'other' END, a.ended_at, j.queue, 0, coalesce(a.ended_at - a.claimed_at, 0)
    FROM tenure_attempt AS a INDEXED BY attempt_ended_idx
    CROSS JOIN tenure_job AS j ON j.id = a.job_id
    WHERE a.ended_at >= :after AND a.ended_at < :until
    UNION ALL
    SELECT 'silence', :until - :minute, s.value, :now - w.last_seen_at, 0
    FROM tenure_worker AS w, json_each(w.queues) AS s
    WHERE :now < :until + :present AND w.started_at < :until
) AS h
CROSS JOIN tenure_queue AS q ON q.name = h.queue
WHERE true
GROUP BY 1, h.queue, q.profile
ON CONFLICT (minute, queue) DO NOTHING;

-- name: count_parts
-- The buckets of the same minutes, and the classes of failures.
INSERT INTO tenure_metric_part (span, at, queue, what, part, n)
SELECT 'minute', h.at / :minute * :minute, h.queue, h.what,
    coalesce(h.class, CAST((SELECT b.bucket FROM tenure_metric_bound AS b WHERE b.bound >= h.us ORDER BY b.bound LIMIT 1) AS TEXT)) AS part, count(*)
FROM (
    SELECT w.value AS what, j.finished_at AS at, j.queue, NULL AS class,
        CASE w.value WHEN 'wait' THEN j.claimed_at - j.run_at WHEN 'run' THEN j.finished_at - j.claimed_at
            ELSE j.finished_at - j.created_at END AS us
    FROM tenure_job AS j INDEXED BY job_finished_idx
    CROSS JOIN json_each('["wait", "run", "total"]') AS w
    WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.state = 'succeeded' AND j.finished_at >= :after AND j.finished_at < :until
    UNION ALL
    SELECT w.value, j.finished_at, j.queue, NULL,
        CASE w.value WHEN 'wait' THEN j.claimed_at - j.run_at WHEN 'run' THEN j.finished_at - j.claimed_at ELSE j.finished_at - j.created_at END
    FROM tenure_job AS j INDEXED BY job_cleaned_idx
    CROSS JOIN json_each('["wait", "run", "total"]') AS w
    WHERE j.cleaned_at IS NOT NULL AND j.state = 'succeeded' AND j.finished_at >= :after AND j.finished_at < :until
    UNION ALL
    SELECT 'class', a.ended_at, j.queue, a.failure_class, 0
    FROM tenure_attempt AS a INDEXED BY attempt_ended_idx
    CROSS JOIN tenure_job AS j ON j.id = a.job_id
    WHERE a.ended_at >= :after AND a.ended_at < :until AND a.outcome IN ('retried', 'expired', 'dead', 'failed')
    UNION ALL
    SELECT 'silence', :until - :minute, s.value, NULL, :now - w.last_seen_at
    FROM tenure_worker AS w, json_each(w.queues) AS s
    WHERE :now < :until + :present AND w.started_at < :until
) AS h
CROSS JOIN tenure_queue AS q ON q.name = h.queue
WHERE true
GROUP BY 2, h.queue, h.what, 5
ON CONFLICT DO NOTHING;

-- name: fold_minutes
-- Hours from :after until just before :until, from their minutes.
INSERT INTO tenure_metric_span (
    span, at, queue, profile, created, completed, failed, attempts_failed, retried, expired, cancelled, latency_seconds, busy_seconds,
    heartbeat_delay_seconds
)
SELECT 'hour', minute / :length * :length, queue, max(profile), sum(created), sum(completed), sum(failed), sum(attempts_failed), sum(retried),
    sum(expired), sum(cancelled), total(latency_seconds), total(busy_seconds), max(heartbeat_delay_seconds)
FROM tenure_metric
WHERE minute >= :after AND minute < :until
GROUP BY 2, queue
ON CONFLICT DO NOTHING;

-- name: fold_hours
-- Days from :after until just before :until, from their hours.
INSERT INTO tenure_metric_span (
    span, at, queue, profile, created, completed, failed, attempts_failed, retried, expired, cancelled, latency_seconds, busy_seconds,
    heartbeat_delay_seconds
)
SELECT 'day', at / :length * :length, queue, max(profile), sum(created), sum(completed), sum(failed), sum(attempts_failed), sum(retried),
    sum(expired), sum(cancelled), total(latency_seconds), total(busy_seconds), max(heartbeat_delay_seconds)
FROM tenure_metric_span
WHERE span = 'hour' AND at >= :after AND at < :until
GROUP BY 2, queue
ON CONFLICT DO NOTHING;

-- name: fold_parts
-- The counts beside them: merging is adding.
INSERT INTO tenure_metric_part (span, at, queue, what, part, n)
SELECT :to, at / :length * :length, queue, what, part, sum(n)
FROM tenure_metric_part
WHERE span = :from AND at >= :after AND at < :until
GROUP BY 2, queue, what, part
ON CONFLICT DO NOTHING;

-- name: drop
-- The oldest minutes go.
DELETE FROM tenure_metric
WHERE rowid IN (SELECT rowid FROM tenure_metric WHERE minute <= :until ORDER BY minute, queue LIMIT :limit);

-- name: drop_spans
-- The oldest hours go; days stay.
DELETE FROM tenure_metric_span
WHERE (span, at, queue) IN (SELECT span, at, queue FROM tenure_metric_span WHERE span = 'hour' AND at <= :until ORDER BY at, queue LIMIT :limit);

-- name: drop_parts
-- The oldest counts beside minutes or hours go.
DELETE FROM tenure_metric_part
WHERE (span, at, queue, what, part) IN (
    SELECT span, at, queue, what, part FROM tenure_metric_part WHERE span = :span AND at <= :until ORDER BY at, queue, what, part LIMIT :limit
);

-- name: metrics
-- Counted minutes, newest first, behind a place in the list.
SELECT minute, queue, profile, created, completed, failed,
    latency_seconds / nullif(completed, 0),
    CAST(attempts_failed AS REAL) / nullif(completed + attempts_failed, 0),
    heartbeat_delay_seconds,
    attempts_failed
FROM tenure_metric
WHERE minute >= :since AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
    AND (:after_minute IS NULL OR minute < :after_minute OR minute = :after_minute AND queue > :after_queue)
ORDER BY minute DESC, queue
LIMIT :limit;

-- name: spans
-- Minutes, hours or days with the counts beside them, oldest first, behind a place in the list.
SELECT m.at, m.queue, m.profile, m.created, m.completed, m.failed, m.attempts_failed, m.retried, m.expired, m.cancelled,
    m.latency_seconds, m.busy_seconds, m.heartbeat_delay_seconds,
    (
        SELECT json_group_array(json_array(p.what, p.part, p.n))
        FROM tenure_metric_part AS p
        WHERE p.span = :span AND p.at = m.at AND p.queue = m.queue
    )
FROM (
    SELECT minute AS at, queue, profile, created, completed, failed, attempts_failed, retried, expired, cancelled, latency_seconds,
        busy_seconds, heartbeat_delay_seconds
    FROM tenure_metric
    WHERE :span = 'minute' AND minute >= :since AND minute < :until
    UNION ALL
    SELECT at, queue, profile, created, completed, failed, attempts_failed, retried, expired, cancelled, latency_seconds, busy_seconds,
        heartbeat_delay_seconds
    FROM tenure_metric_span
    WHERE :span <> 'minute' AND span = :span AND at >= :since AND at < :until
) AS m
WHERE (:queues IS NULL OR m.queue IN (SELECT value FROM json_each(:queues)))
    AND (:after_at IS NULL OR m.at > :after_at OR m.at = :after_at AND m.queue > :after_queue)
ORDER BY m.at, m.queue
LIMIT :limit;

-- name: sums
-- Minutes, hours or days, each summed over its queues, oldest first, behind a place in the list.
SELECT m.at, '', '', sum(m.created), sum(m.completed), sum(m.failed), sum(m.attempts_failed), sum(m.retried), sum(m.expired),
    sum(m.cancelled), total(m.latency_seconds), total(m.busy_seconds), max(m.heartbeat_delay_seconds), '[]'
FROM (
    SELECT minute AS at, queue, created, completed, failed, attempts_failed, retried, expired, cancelled, latency_seconds, busy_seconds,
        heartbeat_delay_seconds
    FROM tenure_metric
    WHERE :span = 'minute' AND minute >= :since AND minute < :until
    UNION ALL
    SELECT at, queue, created, completed, failed, attempts_failed, retried, expired, cancelled, latency_seconds, busy_seconds,
        heartbeat_delay_seconds
    FROM tenure_metric_span
    WHERE :span <> 'minute' AND span = :span AND at >= :since AND at < :until
) AS m
WHERE (:queues IS NULL OR m.queue IN (SELECT value FROM json_each(:queues))) AND (:after_at IS NULL OR m.at > :after_at)
GROUP BY m.at
ORDER BY m.at
LIMIT :limit;

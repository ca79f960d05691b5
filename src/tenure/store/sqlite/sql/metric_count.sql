-- metric_count: write what happened from :after until just before :until. Created jobs are found by the time in their ids, a UUIDv7's
-- first 48 bits of milliseconds, with a minute of patience for clocks that differ; deaths by their letters, since a job that was revived
-- no longer tells of its death. Workers' silence is known of the present only.
INSERT INTO tenure_metric (minute, queue, profile, created, completed, failed, latency_seconds, heartbeat_delay_seconds)
SELECT h.at / :minute * :minute AS minute, h.queue, q.profile,
    sum(h.what = 'created'),
    sum(h.what = 'completed'),
    sum(h.what = 'failed'),
    total(CASE WHEN h.what = 'completed' THEN max(h.us, 0) / 1e6 END),
    max(CASE WHEN h.what = 'silence' THEN max(h.us, 0) / 1e6 END)
FROM (
    SELECT 'created' AS what, created_at AS at, queue, 0 AS us
    FROM tenure_job
    WHERE id >= printf('%08x-%04x', (:after - :minute) / 1000 >> 16, (:after - :minute) / 1000 & 65535)
        AND id < printf('%08x-%04x', (:until + :minute) / 1000 >> 16, (:until + :minute) / 1000 & 65535)
        AND created_at >= :after AND created_at < :until
    UNION ALL
    SELECT 'completed', finished_at, queue, finished_at - run_at
    FROM tenure_job INDEXED BY job_finished_idx
    WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND state = 'succeeded' AND finished_at >= :after AND finished_at < :until
    UNION ALL
    SELECT 'completed', finished_at, queue, finished_at - run_at
    FROM tenure_job INDEXED BY job_cleaned_idx
    WHERE cleaned_at IS NOT NULL AND state = 'succeeded' AND finished_at >= :after AND finished_at < :until
    UNION ALL
    SELECT 'failed', moved_at, queue, 0
    FROM tenure_dead_letter INDEXED BY dead_letter_triage_idx
    WHERE triage IN ('pending', 'acknowledged', 'manual_replay', 'escalated', 'closed') AND moved_at >= :after AND moved_at < :until
    UNION ALL
    SELECT 'silence', :until - :minute, s.value, :now - w.last_seen_at
    FROM tenure_worker AS w, json_each(w.queues) AS s
    WHERE :now < :until + :present
) AS h
CROSS JOIN tenure_queue AS q ON q.name = h.queue
WHERE true
GROUP BY 1, h.queue, q.profile
ON CONFLICT (minute, queue) DO UPDATE
SET profile = excluded.profile,
    created = excluded.created,
    completed = excluded.completed,
    failed = excluded.failed,
    latency_seconds = excluded.latency_seconds,
    heartbeat_delay_seconds = excluded.heartbeat_delay_seconds;

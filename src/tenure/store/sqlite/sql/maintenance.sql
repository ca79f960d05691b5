-- Retention, the tally of ended jobs, and minutes that are counted.

-- name: workers_unseen
-- Workers that were not seen since a moment, the longest ago first.
-- While the gate `heartbeat` is closed nobody can be seen, so nobody counts as silent.
SELECT id
FROM tenure_worker
WHERE last_seen_at <= :since
    AND NOT EXISTS (SELECT 1 FROM tenure_gate WHERE name = 'heartbeat' AND is_open = 0)
ORDER BY last_seen_at
LIMIT :limit;

-- name: worker_remove
-- A worker's row goes; what it held was taken back before.
DELETE FROM tenure_worker WHERE id = ?;

-- name: prune_clean
-- What ended longer ago than its queue retains loses payload, result and error; the row stays.
-- A job with a dead letter that is not closed keeps everything: somebody still has to look at it.
UPDATE tenure_job
SET payload = NULL,
    result = NULL,
    result_summary = NULL,
    progress = NULL,
    last_error = NULL,
    cleaned_at = :now,
    updated_at = :now
WHERE rowid IN (
    SELECT j.rowid
    FROM tenure_job AS j INDEXED BY job_finished_idx
    CROSS JOIN tenure_queue AS q ON q.name = j.queue
    WHERE j.finished_at IS NOT NULL
        AND j.cleaned_at IS NULL
        AND j.finished_at <= :now - 1000000 * coalesce(:older_than_seconds, q.retain_seconds)
        AND NOT EXISTS (SELECT 1 FROM tenure_dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
    ORDER BY j.finished_at
    LIMIT :limit
)
RETURNING id;

-- name: prune_errors
-- What failed attempts said goes with the job's own error.
UPDATE tenure_attempt SET error = NULL WHERE job_id IN (SELECT value FROM json_each(:ids)) AND error IS NOT NULL;

-- name: prune_ids
-- Cleaned rows that ended long enough ago to go altogether.
SELECT id
FROM tenure_job INDEXED BY job_cleaned_idx
WHERE cleaned_at IS NOT NULL
    AND finished_at <= :now - 1000000 * :delete_after_seconds
    AND NOT EXISTS (SELECT 1 FROM tenure_dead_letter AS d WHERE d.job_id = tenure_job.id AND d.triage <> 'closed')
ORDER BY finished_at
LIMIT :limit;

-- name: prune_attempts
-- The attempts of jobs that go.
DELETE FROM tenure_attempt WHERE job_id IN (SELECT value FROM json_each(:ids));

-- name: prune_effects
-- The effects of jobs that go.
DELETE FROM tenure_effect WHERE job_id IN (SELECT value FROM json_each(:ids));

-- name: prune_events
-- The events of jobs that go.
DELETE FROM tenure_event WHERE job_id IN (SELECT value FROM json_each(:ids));

-- name: prune_jobs
-- The jobs that go.
DELETE FROM tenure_job WHERE id IN (SELECT value FROM json_each(:ids));

-- name: profile_any
-- Whether any profile is installed.
SELECT 1 FROM tenure_profile LIMIT 1;

-- name: tally_mark
-- Up to where the tally has counted.
SELECT counted_until FROM tenure_tally_mark;

-- name: tally_move_mark
-- Everything up to there is counted.
UPDATE tenure_tally_mark SET counted_until = ?;

-- name: tally_up
-- Count what ended well, and what was cleaned, after :after and up to :until.
INSERT INTO tenure_tally (profile, kind, state, is_cleaned, day, jobs, attempts, attempts_max, oldest_at, newest_at)
SELECT profile, kind, state, is_cleaned, day, count(*), sum(attempt), max(attempt), min(created_at), max(created_at)
FROM (
    SELECT profile, kind, state, 0 AS is_cleaned, finished_at / 86400000000 AS day, attempt, created_at
    FROM tenure_job INDEXED BY job_finished_idx
    WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND state = 'succeeded' AND finished_at > :after AND finished_at <= :until
    UNION ALL
    SELECT profile, kind, state, 1, finished_at / 86400000000, attempt, created_at
    FROM tenure_job INDEXED BY job_cleaned_idx
    WHERE cleaned_at IS NOT NULL AND finished_at > :after AND finished_at <= :until
)
WHERE true
GROUP BY profile, kind, state, is_cleaned, day
ON CONFLICT (profile, kind, state, is_cleaned, day) DO UPDATE
SET jobs = jobs + excluded.jobs,
    attempts = attempts + excluded.attempts,
    attempts_max = max(attempts_max, excluded.attempts_max),
    oldest_at = min(oldest_at, excluded.oldest_at),
    newest_at = max(newest_at, excluded.newest_at);

-- name: tally_take
-- These jobs no longer count as :is_cleaned. Only what was counted is taken.
UPDATE tenure_tally
SET jobs = tenure_tally.jobs - m.jobs,
    attempts = tenure_tally.attempts - m.attempts
FROM (
    SELECT profile, kind, state, finished_at / 86400000000 AS day, count(*) AS jobs, sum(attempt) AS attempts
    FROM tenure_job
    WHERE id IN (SELECT value FROM json_each(:ids)) AND finished_at <= :until
    GROUP BY profile, kind, state, day
) AS m
WHERE tenure_tally.profile = m.profile AND tenure_tally.kind = m.kind AND tenure_tally.state = m.state
    AND tenure_tally.day = m.day AND tenure_tally.is_cleaned = :is_cleaned;

-- name: tally_add_cleaned
-- These jobs count as cleaned from now on, where they were counted before.
INSERT INTO tenure_tally (profile, kind, state, is_cleaned, day, jobs, attempts, attempts_max, oldest_at, newest_at)
SELECT profile, kind, state, 1, finished_at / 86400000000 AS day, count(*), sum(attempt), max(attempt), min(created_at), max(created_at)
FROM tenure_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND finished_at <= :until
GROUP BY profile, kind, state, day
ON CONFLICT (profile, kind, state, is_cleaned, day) DO UPDATE
SET jobs = jobs + excluded.jobs,
    attempts = attempts + excluded.attempts,
    attempts_max = max(attempts_max, excluded.attempts_max),
    oldest_at = min(oldest_at, excluded.oldest_at),
    newest_at = max(newest_at, excluded.newest_at);

-- name: tally_drop_empty
-- Rows of which nothing is left.
DELETE FROM tenure_tally WHERE jobs <= 0;

-- name: metric_mark
-- Up to where minutes are counted.
SELECT counted_until FROM tenure_metric_mark;

-- name: metric_move_mark
-- Every minute before that is counted.
UPDATE tenure_metric_mark SET counted_until = ?;

-- name: metric_count
-- Write what happened from :after until just before :until. Created jobs are found by the time in their ids, a UUIDv7's
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

-- name: metric_drop
-- The oldest minutes go.
DELETE FROM tenure_metric
WHERE rowid IN (SELECT rowid FROM tenure_metric WHERE minute <= :until ORDER BY minute, queue LIMIT :limit);

-- name: metrics
-- Counted minutes, newest first.
SELECT minute, queue, profile, created, completed, failed,
    latency_seconds / nullif(completed, 0),
    CAST(failed AS REAL) / nullif(completed + failed, 0),
    heartbeat_delay_seconds
FROM tenure_metric
WHERE minute >= :since AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
ORDER BY minute DESC, queue
LIMIT :limit;

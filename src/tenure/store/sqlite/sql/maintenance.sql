-- Retention, and the tally of ended jobs.

-- name: silent_holds
-- What silent workers hold in profiles whose settings say that silence takes it (worker_timeout_seconds, specification 003; the shorter
-- of the two times counts): in every other profile a lease stands until it runs out.
-- While a heartbeat gate that concerns a worker is closed it cannot be seen, so it does not count as silent.
SELECT j.id, j.token, j.lease_owner, j.lease_until
FROM tenure_profile AS p
JOIN tenure_job AS j INDEXED BY job_lease_idx ON j.profile = p.name AND j.state IN ('leased', 'running')
JOIN tenure_worker AS w ON w.id = j.lease_owner
WHERE w.last_seen_at <= :now - min(:unseen, CAST(1000000 * (p.settings ->> '$.worker_timeout_seconds') AS INTEGER))
    AND NOT EXISTS (
        SELECT 1
        FROM tenure_gate AS g
        WHERE g.is_open = 0 AND (g.name = 'heartbeat' OR g.name IN (
            SELECT q.profile || '.heartbeat' FROM json_each(w.queues) AS s JOIN tenure_queue AS q ON q.name = s.value))
    )
ORDER BY j.id;

-- name: workers_unseen
-- Workers that were not seen for so long and hold nothing, the longest ago first.
SELECT w.id
FROM tenure_worker AS w
WHERE w.last_seen_at <= :now - min(:unseen, coalesce((
        SELECT min(CAST(1000000 * (p.settings ->> '$.worker_timeout_seconds') AS INTEGER))
        FROM json_each(w.queues) AS s
        JOIN tenure_queue AS q ON q.name = s.value
        JOIN tenure_profile AS p ON p.name = q.profile
    ), :unseen))
    AND NOT EXISTS (
        SELECT 1 FROM tenure_job AS j INDEXED BY job_lease_idx WHERE j.state IN ('leased', 'running') AND j.lease_owner = w.id
    )
    AND NOT EXISTS (
        SELECT 1
        FROM tenure_gate AS g
        WHERE g.is_open = 0 AND (g.name = 'heartbeat' OR g.name IN (
            SELECT q.profile || '.heartbeat' FROM json_each(w.queues) AS s JOIN tenure_queue AS q ON q.name = s.value))
    )
ORDER BY w.last_seen_at
LIMIT :limit;

-- name: worker_remove
-- A worker's row goes; what it held was taken back before.
DELETE FROM tenure_worker WHERE id = ?;

-- name: worker_gate_remove
-- The gate of a worker goes with its row.
DELETE FROM tenure_gate WHERE name = 'worker:' || ?;

-- name: prune_clean
-- What ended longer ago than its queue retains loses payload, result and error; the row stays.
-- A job with a dead letter that is not closed keeps everything: it is still to be looked at.
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
        -- The same for the queue that retains least, which ends the walk of the index there.
        AND j.finished_at <= :now - 1000000 * coalesce(:older_than_seconds, (SELECT min(retain_seconds) FROM tenure_queue))
        AND NOT EXISTS (SELECT 1 FROM tenure_dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
        -- What a job that has not ended may still read of its children stays.
        AND (j.group_id IS NULL OR NOT EXISTS (
            SELECT 1 FROM tenure_job_group AS g JOIN tenure_job AS p ON p.id = g.parent_id WHERE g.id = j.group_id AND p.finished_at IS NULL))
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
    AND (group_id IS NULL OR NOT EXISTS (
        SELECT 1 FROM tenure_job_group AS g JOIN tenure_job AS p ON p.id = g.parent_id
        WHERE g.id = tenure_job.group_id AND p.finished_at IS NULL))
ORDER BY finished_at
LIMIT :limit;

-- name: prune_attempts
-- The attempts of jobs that go.
DELETE FROM tenure_attempt WHERE job_id IN (SELECT value FROM json_each(:ids));

-- name: prune_effects
-- The effects of jobs that go.
DELETE FROM tenure_effect WHERE job_id IN (SELECT value FROM json_each(:ids));

-- name: prune_values
-- The values of steps go with the job's own result.
UPDATE tenure_step SET value = NULL, error = NULL
WHERE job_id IN (SELECT value FROM json_each(:ids)) AND coalesce(value, error) IS NOT NULL;

-- name: prune_steps
-- The steps of jobs that go.
DELETE FROM tenure_step WHERE job_id IN (SELECT value FROM json_each(:ids));

-- name: prune_members
DELETE FROM tenure_group_member
WHERE group_id IN (SELECT id FROM tenure_job_group WHERE parent_id IN (SELECT value FROM json_each(:ids)));

-- name: prune_groups
DELETE FROM tenure_job_group WHERE parent_id IN (SELECT value FROM json_each(:ids));

-- name: prune_signals
-- Signals that have expired.
DELETE FROM tenure_signal WHERE id IN (SELECT id FROM tenure_signal WHERE expires_at <= :now ORDER BY expires_at LIMIT :limit);

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

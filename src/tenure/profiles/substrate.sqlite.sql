-- substrate (specification 002) on SQLite: its tables and views. Its functions need a server; on SQLite a job is worked on through the
-- other doors, which the same gates stop.
-- Moments are text, as SQLite's own functions make and read it: datetime('now', '-5 minutes') compares with them.
DROP VIEW IF EXISTS substrate_v_queue_health;
DROP VIEW IF EXISTS substrate_v_job_queue_backlog;
DROP VIEW IF EXISTS substrate_v_job_dead_letter_summary;
DROP VIEW IF EXISTS substrate_job_queue;
CREATE VIEW substrate_job_queue AS
SELECT
    s.id AS job_id,
    s.kind AS job_kind,
    CASE
        WHEN s.is_cleaned THEN 'cleaned'
        WHEN s.stage = 'due' THEN 'queued'
        WHEN s.stage = 'later' THEN 'queued'
        WHEN s.stage = 'waiting' THEN 'queued'
        WHEN s.stage = 'retry' THEN 'retry_waiting'
        WHEN s.stage = 'leased' THEN 'leased'
        WHEN s.stage = 'running' THEN 'in_progress'
        WHEN s.stage = 'succeeded' THEN 'succeeded'
        WHEN s.stage = 'dead' THEN 'dead_letter'
        WHEN s.stage = 'cancelled' THEN 'cancelled'
        ELSE 'failed'
    END AS state,
    s.source_ref,
    s.target_ref,
    s.payload_ref,
    coalesce(s.payload, '{}') AS payload_json,
    s.priority,
    datetime(nullif(s.run_at, 253402300799999999) / 1000000, 'unixepoch') || '.' || substr('00' || (s.run_at / 1000 % 1000), -3) AS scheduled_at,
    datetime(s.claimed_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.claimed_at / 1000 % 1000), -3) AS picked_at,
    s.finished_text AS finished_at,
    s.lease_owner,
    datetime(s.lease_until / 1000000, 'unixepoch') || '.' || substr('00' || (s.lease_until / 1000 % 1000), -3) AS lease_until,
    s.attempt AS attempts,
    s.max_attempts,
    s.idempotency_key,
    coalesce(s.actor, 'tenure') AS actor,
    s.run_id,
    s.last_error,
    datetime(s.created_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.created_at / 1000 % 1000), -3) AS created_at,
    datetime(s.updated_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.updated_at / 1000 % 1000), -3) AS updated_at
FROM tenure_shown AS s
WHERE s.of_profile = 'substrate';

-- The specification's own indexes: by key, in the order of the claim, for retention by age. `profile` and `state` are among the columns
-- because SQLite, which has no statistics here, takes the index of which a branch of the view fixes most columns.
CREATE INDEX IF NOT EXISTS job_substrate_key_idx ON tenure_job (idempotency_key, state, profile) WHERE idempotency_key IS NOT NULL AND profile = 'substrate';
CREATE INDEX IF NOT EXISTS job_substrate_order_idx
ON tenure_job (profile, is_due, datetime(nullif(run_at, 253402300799999999) / 1000000, 'unixepoch') || '.' || substr('00' || (run_at / 1000 % 1000), -3), priority)
WHERE state = 'queued' AND (failure_class IS NULL OR attempt = 0) AND profile = 'substrate';
CREATE INDEX IF NOT EXISTS job_substrate_retry_idx
ON tenure_job (profile, datetime(nullif(run_at, 253402300799999999) / 1000000, 'unixepoch') || '.' || substr('00' || (run_at / 1000 % 1000), -3), priority)
WHERE state = 'queued' AND failure_class IS NOT NULL AND attempt > 0 AND profile = 'substrate';
CREATE INDEX IF NOT EXISTS job_substrate_asleep_idx
ON tenure_job (profile, datetime(nullif(run_at, 253402300799999999) / 1000000, 'unixepoch') || '.' || substr('00' || (run_at / 1000 % 1000), -3), priority)
WHERE state = 'waiting' AND profile = 'substrate';
CREATE INDEX IF NOT EXISTS job_substrate_created_idx
ON tenure_job (profile, state, datetime(created_at / 1000000, 'unixepoch') || '.' || substr('00' || (created_at / 1000 % 1000), -3))
WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND profile = 'substrate';
CREATE INDEX IF NOT EXISTS job_substrate_cleaned_idx
ON tenure_job (profile, state, datetime(created_at / 1000000, 'unixepoch') || '.' || substr('00' || (created_at / 1000 % 1000), -3))
WHERE finished_at IS NOT NULL AND cleaned_at IS NOT NULL AND profile = 'substrate';

CREATE TRIGGER substrate_enqueue INSTEAD OF INSERT ON substrate_job_queue
BEGIN
    SELECT RAISE(ABORT, 'A job begins as queued, with no attempts made; its moves set picked_at, finished_at, lease_owner, lease_until and last_error. Nothing was enqueued.')
    WHERE coalesce(NEW.state, 'queued') <> 'queued' OR coalesce(NEW.attempts, 0) <> 0
        OR coalesce(NEW.picked_at, NEW.finished_at, NEW.lease_owner, NEW.lease_until, NEW.last_error) IS NOT NULL;
    SELECT RAISE(ABORT, 'A job needs an actor, and a priority that is not negative. Nothing was enqueued.')
    WHERE trim(coalesce(NEW.actor, '')) = '' OR NEW.priority < 0;
    SELECT RAISE(ABORT, 'scheduled_at is no moment that SQLite reads, such as 2026-01-31 12:00:00. Nothing was enqueued.')
    WHERE NEW.scheduled_at IS NOT NULL AND julianday(NEW.scheduled_at) IS NULL;
    INSERT INTO tenure_inbox (
        id, profile, queue, kind, payload, priority, max_attempts, key, actor, source_ref, target_ref, payload_ref, run_id, run_at
    )
    VALUES (
        NEW.job_id, 'substrate', 'substrate', NEW.job_kind, coalesce(NEW.payload_json, '{}'), NEW.priority, NEW.max_attempts,
        NEW.idempotency_key, NEW.actor, NEW.source_ref, NEW.target_ref, NEW.payload_ref, NEW.run_id,
        CAST(round((julianday(NEW.scheduled_at) - 2440587.5) * 86400000) AS INTEGER) * 1000
    );
END;

-- SQLite's RETURNING shows what was given. RETURNING (SELECT job_id FROM substrate_job_queue_inserted) shows what was made, or found under the key.
DROP VIEW IF EXISTS substrate_job_queue_inserted;
CREATE VIEW substrate_job_queue_inserted AS
SELECT j.id AS job_id, j.kind AS job_kind, i.is_duplicate AS duplicate
FROM tenure_inserted AS i
JOIN tenure_job AS j ON j.id = i.id
WHERE i.profile = 'substrate';

-- Without these an UPDATE or DELETE … RETURNING would answer as if it had been done.
CREATE TRIGGER substrate_refuse_update INSTEAD OF UPDATE ON substrate_job_queue
BEGIN
    SELECT RAISE(ABORT, 'A job is not changed by UPDATE: it could come from a worker that lost its lease. Nothing was changed. Claim, complete and fail jobs through App or the tenure command; tenure jobs cancel and tenure jobs revive are for operators.');
END;
CREATE TRIGGER substrate_refuse_delete INSTEAD OF DELETE ON substrate_job_queue
BEGIN
    SELECT RAISE(ABORT, 'A job is not removed by DELETE: its worker would work for nothing, and no record of it would remain. Nothing was changed. Use tenure jobs cancel for one that is not done; tenure prune removes what ended long ago.');
END;

-- What was moved here because its attempts were spent. A job that was refused is `failed`, where it lies: Tenure's own list of dead letters
-- has it for triage (tenure dlq ls), this one has not.
DROP VIEW IF EXISTS substrate_job_dead_letter;
CREATE VIEW substrate_job_dead_letter AS
SELECT
    d.id AS dead_letter_id,
    d.job_id,
    d.kind AS job_kind,
    d.source_ref,
    d.target_ref,
    d.payload_ref,
    coalesce(d.payload, '{}') AS payload_json,
    d.final_error,
    d.attempts,
    coalesce(d.actor, 'tenure') AS actor,
    d.run_id,
    d.idempotency_key,
    datetime(d.moved_at / 1000000, 'unixepoch') || '.' || substr('00' || (d.moved_at / 1000 % 1000), -3) AS moved_at,
    d.moved_by,
    d.triage AS triage_status,
    d.triage_note,
    datetime(d.triaged_at / 1000000, 'unixepoch') || '.' || substr('00' || (d.triaged_at / 1000 % 1000), -3) AS triaged_at,
    d.triaged_by
FROM tenure_dead_letter AS d
WHERE d.profile = 'substrate' AND d.state = 'dead';
CREATE TRIGGER substrate_refuse_triage INSTEAD OF UPDATE ON substrate_job_dead_letter
BEGIN
    SELECT RAISE(ABORT, 'A dead letter is not triaged by UPDATE on SQLite, where no function stands behind it. Nothing was changed. Use tenure dlq ack, escalate, close or replay.');
END;

-- updated_at is refreshed after an UPDATE that has not moved it itself. Claims, heartbeats and completions do; this is for changes by hand.
DROP TRIGGER IF EXISTS tr_job_queue_updated_at;
CREATE TRIGGER tr_job_queue_updated_at AFTER UPDATE ON tenure_job
WHEN NEW.updated_at = OLD.updated_at AND NEW.profile = 'substrate'
BEGIN
    UPDATE tenure_job
    SET updated_at = max(OLD.updated_at + 1, CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)
    WHERE rowid = NEW.rowid;
END;

-- executor_change: when an executor's row was last changed otherwise than by a tick, which moves last_seen_at.
CREATE TABLE IF NOT EXISTS substrate_executor_change (
    executor_name TEXT NOT NULL PRIMARY KEY,
    updated_at INTEGER NOT NULL
) STRICT;
DROP TRIGGER IF EXISTS tr_queue_heartbeat_updated_at;
CREATE TRIGGER tr_queue_heartbeat_updated_at AFTER UPDATE ON tenure_worker
WHEN NEW.last_seen_at = OLD.last_seen_at
BEGIN
    INSERT INTO substrate_executor_change (executor_name, updated_at)
    VALUES (
        NEW.id,
        max(
            NEW.last_seen_at + 1,
            coalesce((SELECT c.updated_at + 1 FROM substrate_executor_change AS c WHERE c.executor_name = NEW.id), 0),
            CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000
        )
    )
    ON CONFLICT (executor_name) DO UPDATE
    SET updated_at = excluded.updated_at;
END;
DROP TRIGGER IF EXISTS tr_queue_heartbeat_gone;
CREATE TRIGGER tr_queue_heartbeat_gone AFTER DELETE ON tenure_worker
BEGIN
    DELETE FROM substrate_executor_change WHERE executor_name = OLD.id;
END;

DROP VIEW IF EXISTS substrate_queue_heartbeat;
CREATE VIEW substrate_queue_heartbeat AS
SELECT
    w.id AS executor_name,
    w.executor_kind,
    datetime(w.last_seen_at / 1000000, 'unixepoch') || '.' || substr('00' || (w.last_seen_at / 1000 % 1000), -3) AS last_tick_at,
    w.status AS last_tick_status,
    w.ticks AS ticks_total,
    w.current_job_id,
    json_extract(w.info, '$.lease_owner') AS lease_owner,
    json_remove(w.info, '$.lease_owner') AS metadata,
    datetime(w.started_at / 1000000, 'unixepoch') || '.' || substr('00' || (w.started_at / 1000 % 1000), -3) AS created_at,
    datetime(max(w.last_seen_at, coalesce(c.updated_at, 0)) / 1000000, 'unixepoch') || '.'
        || substr('00' || (max(w.last_seen_at, coalesce(c.updated_at, 0)) / 1000 % 1000), -3) AS updated_at
FROM tenure_worker AS w
LEFT JOIN substrate_executor_change AS c ON c.executor_name = w.id
WHERE EXISTS (
    SELECT 1
    FROM json_each(w.queues) AS served
    JOIN tenure_queue AS q ON q.name = served.value AND q.profile = 'substrate'
);

DROP VIEW IF EXISTS substrate_dot_config;
CREATE VIEW substrate_dot_config AS
SELECT
    k.column1 AS key,
    CASE
        WHEN k.column2 IS NOT NULL THEN
            CASE coalesce((SELECT g.is_open FROM tenure_gate AS g WHERE g.name = 'substrate.' || k.column2), 1) WHEN 1 THEN 'true' ELSE 'false' END
        WHEN k.column3 = 'max_attempts' THEN (SELECT CAST(q.max_attempts AS TEXT) FROM tenure_queue AS q WHERE q.name = 'substrate')
        WHEN k.column3 = 'backoff' THEN (SELECT printf('%g', q.backoff_base_seconds) FROM tenure_queue AS q WHERE q.name = 'substrate')
        WHEN k.column3 = 'lease' THEN (SELECT printf('%g', q.lease_seconds) FROM tenure_queue AS q WHERE q.name = 'substrate')
        ELSE (SELECT CAST(json_extract(p.settings, '$."' || k.column1 || '"') AS TEXT) FROM tenure_profile AS p WHERE p.name = 'substrate')
    END AS value
FROM (
    VALUES
        ('queue.job_substrate.enabled', 'master', NULL),
        ('queue.worker.enabled', 'worker', NULL),
        ('queue.notify.enabled', 'notify', NULL),
        ('queue.heartbeat.enabled', 'heartbeat', NULL),
        ('queue.heartbeat.stale_threshold_seconds', NULL, NULL),
        ('queue.retry.max_attempts_default', NULL, 'max_attempts'),
        ('queue.retry.backoff_base_sec', NULL, 'backoff'),
        ('queue.lease.duration_sec', NULL, 'lease')
) AS k;
CREATE TRIGGER substrate_refuse_config INSTEAD OF UPDATE ON substrate_dot_config
BEGIN
    SELECT RAISE(ABORT, 'dot_config is not set by UPDATE on SQLite, where no function stands behind it. Nothing was changed. Use tenure gates open or close (substrate.master, .worker, .notify, .heartbeat), or tenure queues set substrate.');
END;

-- What ended well is read from the tally and the little that it has not counted yet; everything else is counted where it lies.
CREATE VIEW substrate_v_job_queue_backlog AS
SELECT
    c.job_kind,
    c.state,
    sum(c.jobs) AS row_count,
    datetime(min(c.oldest_at) / 1000000, 'unixepoch') || '.' || substr('00' || (min(c.oldest_at) / 1000 % 1000), -3) AS oldest_created_at,
    datetime(max(c.newest_at) / 1000000, 'unixepoch') || '.' || substr('00' || (max(c.newest_at) / 1000 % 1000), -3) AS newest_created_at,
    datetime(min(c.next_at) / 1000000, 'unixepoch') || '.' || substr('00' || (min(c.next_at) / 1000 % 1000), -3) AS next_scheduled_at,
    round(CAST(sum(c.attempts) AS REAL) / nullif(sum(c.jobs), 0), 2) AS avg_attempts,
    max(c.attempts_max) AS max_attempts_made
FROM (
    SELECT s.kind AS job_kind,
        CASE s.stage WHEN 'retry' THEN 'retry_waiting' WHEN 'leased' THEN 'leased' WHEN 'running' THEN 'in_progress' WHEN 'dead' THEN 'dead_letter'
            WHEN 'failed' THEN 'failed' WHEN 'cancelled' THEN 'cancelled' ELSE 'queued' END AS state,
        count(*) AS jobs, min(s.created_at) AS oldest_at, max(s.created_at) AS newest_at,
        min(CASE WHEN s.stage IN ('due', 'later', 'waiting', 'retry') THEN s.run_at END) AS next_at,
        sum(s.attempt) AS attempts, max(s.attempt) AS attempts_max
    FROM tenure_shown AS s
    WHERE s.of_profile = 'substrate' AND s.stage <> 'succeeded' AND s.is_cleaned = 0
    GROUP BY 1, 2
    UNION ALL
    SELECT t.kind, CASE t.is_cleaned WHEN 1 THEN 'cleaned' ELSE 'succeeded' END, t.jobs, t.oldest_at, t.newest_at, NULL,
        t.attempts, t.attempts_max
    FROM tenure_tally AS t
    WHERE t.profile = 'substrate'
    UNION ALL
    SELECT e.kind, 'succeeded', count(*), min(e.created_at), max(e.created_at), NULL, sum(e.attempt), max(e.attempt)
    FROM tenure_job AS e INDEXED BY job_finished_idx
    WHERE e.finished_at IS NOT NULL AND e.cleaned_at IS NULL AND e.state = 'succeeded' AND e.profile = 'substrate'
        AND e.finished_at > (SELECT m.counted_until FROM tenure_tally_mark AS m)
    GROUP BY e.kind
    UNION ALL
    SELECT e.kind, 'cleaned', count(*), min(e.created_at), max(e.created_at), NULL, sum(e.attempt), max(e.attempt)
    FROM tenure_job AS e INDEXED BY job_cleaned_idx
    WHERE e.cleaned_at IS NOT NULL AND e.profile = 'substrate' AND e.finished_at > (SELECT m.counted_until FROM tenure_tally_mark AS m)
    GROUP BY e.kind
) AS c
GROUP BY c.job_kind, c.state;

CREATE VIEW substrate_v_job_dead_letter_summary AS
SELECT
    d.job_kind,
    d.triage_status,
    count(*) AS row_count,
    min(d.moved_at) AS oldest_moved_at,
    max(d.moved_at) AS newest_moved_at,
    round(avg(d.attempts), 2) AS avg_attempts,
    max(d.attempts) AS max_attempts_made
FROM substrate_job_dead_letter AS d
GROUP BY d.job_kind, d.triage_status;

-- 25 columns. One row per executor, and one without an executor if there is none, so that the rest is never out of sight.
CREATE VIEW substrate_v_queue_health AS
SELECT
    h.executor_name,
    h.executor_kind,
    h.last_tick_at,
    h.last_tick_status,
    h.ticks_total,
    h.current_job_id,
    h.lease_owner,
    h.age AS heartbeat_age_seconds,
    CASE
        WHEN h.executor_name IS NULL THEN NULL
        WHEN h.age <= t.threshold THEN 'fresh'
        WHEN h.age <= 2 * t.threshold THEN 'warning'
        ELSE 'stale'
    END AS heartbeat_state,
    j.queued AS jobs_queued,
    j.leased AS jobs_leased,
    j.in_progress AS jobs_in_progress,
    j.succeeded AS jobs_succeeded,
    j.failed AS jobs_failed,
    j.retry_waiting AS jobs_retry_waiting,
    j.dead_letter AS jobs_dead_letter,
    j.cancelled AS jobs_cancelled,
    j.cleaned AS jobs_cleaned,
    d.pending AS dead_letters_pending,
    d.acknowledged AS dead_letters_acknowledged,
    d.escalated AS dead_letters_escalated,
    (SELECT c.value = 'true' FROM substrate_dot_config AS c WHERE c.key = 'queue.job_substrate.enabled') AS job_substrate_enabled,
    (SELECT c.value = 'true' FROM substrate_dot_config AS c WHERE c.key = 'queue.worker.enabled') AS worker_enabled,
    (SELECT c.value = 'true' FROM substrate_dot_config AS c WHERE c.key = 'queue.notify.enabled') AS notify_enabled,
    (SELECT c.value = 'true' FROM substrate_dot_config AS c WHERE c.key = 'queue.heartbeat.enabled') AS heartbeat_enabled
FROM (
    SELECT CAST(c.value AS REAL) AS threshold FROM substrate_dot_config AS c WHERE c.key = 'queue.heartbeat.stale_threshold_seconds'
) AS t
CROSS JOIN (
    SELECT
        (SELECT count(*) FROM tenure_job AS e
            WHERE e.state = 'queued' AND (e.failure_class IS NULL OR e.attempt = 0) AND e.profile = 'substrate')
        + (SELECT count(*) FROM tenure_job AS e WHERE e.state = 'waiting' AND e.profile = 'substrate') AS queued,
        (SELECT count(*) FROM tenure_job AS e
            WHERE e.state = 'queued' AND e.failure_class IS NOT NULL AND e.attempt > 0 AND e.profile = 'substrate') AS retry_waiting,
        (SELECT count(*) FROM tenure_job AS e
            WHERE e.state IN ('leased', 'running') AND e.state = 'leased' AND e.profile = 'substrate') AS leased,
        (SELECT count(*) FROM tenure_job AS e
            WHERE e.state IN ('leased', 'running') AND e.state = 'running' AND e.profile = 'substrate') AS in_progress,
        (SELECT count(*) FROM tenure_job AS e
            WHERE e.finished_at IS NOT NULL AND e.cleaned_at IS NULL AND e.state = 'failed' AND e.profile = 'substrate') AS failed,
        (SELECT count(*) FROM tenure_job AS e
            WHERE e.finished_at IS NOT NULL AND e.cleaned_at IS NULL AND e.state = 'dead' AND e.profile = 'substrate') AS dead_letter,
        (SELECT count(*) FROM tenure_job AS e
            WHERE e.finished_at IS NOT NULL AND e.cleaned_at IS NULL AND e.state = 'cancelled' AND e.profile = 'substrate') AS cancelled,
        coalesce((SELECT sum(t.jobs) FROM tenure_tally AS t WHERE t.profile = 'substrate' AND t.is_cleaned = 0), 0) + (
            SELECT count(*)
            FROM tenure_job AS e INDEXED BY job_finished_idx
            WHERE e.finished_at IS NOT NULL AND e.cleaned_at IS NULL AND e.state = 'succeeded' AND e.profile = 'substrate'
                AND e.finished_at > (SELECT m.counted_until FROM tenure_tally_mark AS m)
        ) AS succeeded,
        coalesce((SELECT sum(t.jobs) FROM tenure_tally AS t WHERE t.profile = 'substrate' AND t.is_cleaned = 1), 0) + (
            SELECT count(*)
            FROM tenure_job AS e INDEXED BY job_cleaned_idx
            WHERE e.cleaned_at IS NOT NULL AND e.profile = 'substrate' AND e.finished_at > (SELECT m.counted_until FROM tenure_tally_mark AS m)
        ) AS cleaned
) AS j
CROSS JOIN (
    SELECT
        count(CASE WHEN l.triage = 'pending' THEN 1 END) AS pending,
        count(CASE WHEN l.triage = 'acknowledged' THEN 1 END) AS acknowledged,
        count(CASE WHEN l.triage = 'escalated' THEN 1 END) AS escalated
    FROM tenure_dead_letter AS l
    WHERE l.profile = 'substrate' AND l.state = 'dead' AND l.triage IN ('pending', 'acknowledged', 'escalated')
) AS d
LEFT JOIN (
    SELECT b.*, CAST(strftime('%s', 'now') AS INTEGER) - CAST(strftime('%s', b.last_tick_at) AS INTEGER) AS age FROM substrate_queue_heartbeat AS b
) AS h ON true;

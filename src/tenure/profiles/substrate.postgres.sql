-- substrate (specification 002) on PostgreSQL, part one: its three tables, three views and dot_config, as views.
CREATE SCHEMA IF NOT EXISTS substrate;

CREATE OR REPLACE VIEW substrate.job_queue AS
SELECT
    s.id AS job_id,
    s.kind::text AS job_kind,
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
    coalesce(s.payload::jsonb, '{}') AS payload_json,
    s.priority,
    CASE s.stage WHEN 'waiting' THEN nullif(s.run_at, 'infinity') ELSE s.run_at END AS scheduled_at,
    s.claimed_at AS picked_at,
    s.finished_at,
    s.lease_owner,
    s.lease_until,
    s.attempt::integer AS attempts,
    s.max_attempts::integer AS max_attempts,
    s.idempotency_key,
    coalesce(s.actor, 'tenure') AS actor,
    s.run_id,
    s.last_error,
    s.created_at,
    s.updated_at
FROM tenure.shown AS s
WHERE s.of_profile = 'substrate';

-- The expression is that of the view above.
SELECT tenure.index_view('substrate', $status$
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
    END
$status$);
-- The specification's own: by key, for retention by age, and in the order of the claim.
SELECT tenure.index_look('substrate', 'key', 's.idempotency_key');
SELECT tenure.index_look('substrate', 'created', 's.created_at');
SELECT tenure.index_look('substrate', 'order', $columns$
    (
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
    END
    ),
    (CASE s.stage WHEN 'waiting' THEN nullif(s.run_at, 'infinity') ELSE s.run_at END),
    s.priority
$columns$);


-- What was moved here because its attempts were spent. A job that was refused is `failed`, where it lies: Tenure's own list of dead letters
-- has it for triage (tenure dlq ls), this one has not.
CREATE OR REPLACE VIEW substrate.job_dead_letter AS
SELECT
    d.id AS dead_letter_id,
    d.job_id,
    d.kind AS job_kind,
    d.source_ref,
    d.target_ref,
    d.payload_ref,
    coalesce(tenure.readable(d.payload)::jsonb, '{}') AS payload_json,
    d.final_error,
    d.attempts,
    coalesce(d.actor, 'tenure') AS actor,
    d.run_id,
    d.idempotency_key,
    d.moved_at,
    d.moved_by,
    d.triage AS triage_status,
    d.triage_note,
    d.triaged_at,
    d.triaged_by
FROM tenure.dead_letter AS d
WHERE d.profile = 'substrate' AND d.state = 'dead';

-- The metadata of an executor is guarded like a payload, by the table itself.
DO $guard$
BEGIN
    ALTER TABLE tenure.worker ADD CONSTRAINT queue_heartbeat_payload_guarded CHECK (
        NOT 'substrate' = ANY (queues)
        OR NOT tenure.has_key(info::json, '{body,content,raw,vector,embedding,secret,token,password,ssn,personal_data}')
    );
EXCEPTION WHEN duplicate_object THEN
    NULL;  -- Installed before.
END
$guard$;

-- executor_change: when an executor's row was last changed otherwise than by a tick, which moves last_seen_at.
CREATE TABLE IF NOT EXISTS substrate.executor_change (
    executor_name text PRIMARY KEY REFERENCES tenure.worker (id) ON DELETE CASCADE,
    updated_at timestamptz NOT NULL
);

-- An executor is a worker that serves a queue of the profile, or that has ticked. Its own lease_owner travels in its info. What it says of
-- itself is shown to those who list workers, and to the login that registered it.
CREATE OR REPLACE VIEW substrate.queue_heartbeat AS
SELECT
    w.id AS executor_name,
    w.executor_kind,
    w.last_seen_at AS last_tick_at,
    w.status AS last_tick_status,
    w.ticks AS ticks_total,
    w.current_job_id,
    CASE WHEN o.is_seen THEN w.info ->> 'lease_owner' END AS lease_owner,
    CASE WHEN o.is_seen THEN w.info - 'lease_owner' ELSE '{}' END AS metadata,
    w.started_at AS created_at,
    greatest(w.last_seen_at, c.updated_at) AS updated_at
FROM tenure.worker AS w
CROSS JOIN LATERAL (
    SELECT coalesce(w.login = a.login, false) OR has_function_privilege(a.login, 'tenure.list_workers(json)', 'EXECUTE') AS is_seen
    -- As tenure.login() has it, which readers may not call.
    FROM (SELECT CASE current_setting('role') WHEN 'none' THEN session_user::text ELSE current_setting('role') END AS login) AS a
) AS o
LEFT JOIN substrate.executor_change AS c ON c.executor_name = w.id
WHERE w.queues && ARRAY(SELECT q.name FROM tenure.queue AS q WHERE q.profile = 'substrate');

-- fn_job_queue_updated_at: refreshes updated_at in an UPDATE that does not move it itself. Claims, heartbeats and completions do, so it is
-- for changes by hand; they pay for the look at WHEN, and wait for no lock that they do not take anyway.
CREATE OR REPLACE FUNCTION substrate.fn_job_queue_updated_at() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    IF TG_TABLE_NAME = 'job' THEN
        NEW.updated_at := greatest(tenure.now(), OLD.updated_at + interval '1 microsecond');
    ELSE
        INSERT INTO substrate.executor_change AS c (executor_name, updated_at)
        SELECT h.executor_name, greatest(tenure.now(), h.updated_at + interval '1 microsecond')
        FROM substrate.queue_heartbeat AS h
        WHERE h.executor_name = NEW.id
        ON CONFLICT (executor_name) DO UPDATE
        SET updated_at = excluded.updated_at;
    END IF;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER tr_job_queue_updated_at BEFORE UPDATE ON tenure.job
FOR EACH ROW WHEN (NEW.updated_at = OLD.updated_at AND NEW.profile = 'substrate')
EXECUTE FUNCTION substrate.fn_job_queue_updated_at();
CREATE OR REPLACE TRIGGER tr_queue_heartbeat_updated_at BEFORE UPDATE ON tenure.worker
FOR EACH ROW WHEN (NEW.last_seen_at = OLD.last_seen_at)
EXECUTE FUNCTION substrate.fn_job_queue_updated_at();

-- Four gates, three settings of the queue, one of the profile.
CREATE OR REPLACE VIEW substrate.dot_config AS
SELECT
    k.key,
    CASE
        WHEN k.gate IS NOT NULL THEN coalesce((SELECT g.is_open FROM tenure.gate AS g WHERE g.name = 'substrate.' || k.gate), true)::text
        WHEN k.setting = 'max_attempts' THEN (SELECT q.max_attempts::text FROM tenure.queue AS q WHERE q.name = 'substrate')
        WHEN k.setting = 'backoff_base_seconds' THEN (SELECT q.backoff_base_seconds::text FROM tenure.queue AS q WHERE q.name = 'substrate')
        WHEN k.setting = 'lease_seconds' THEN (SELECT q.lease_seconds::text FROM tenure.queue AS q WHERE q.name = 'substrate')
        ELSE (SELECT p.settings ->> k.key FROM tenure.profile AS p WHERE p.name = 'substrate')
    END AS value
FROM (
    VALUES
        ('queue.job_substrate.enabled', 'master', NULL),
        ('queue.worker.enabled', 'worker', NULL),
        ('queue.notify.enabled', 'notify', NULL),
        ('queue.heartbeat.enabled', 'heartbeat', NULL),
        ('queue.heartbeat.stale_threshold_seconds', NULL, NULL),
        ('queue.retry.max_attempts_default', NULL, 'max_attempts'),
        ('queue.retry.backoff_base_sec', NULL, 'backoff_base_seconds'),
        ('queue.lease.duration_sec', NULL, 'lease_seconds')
) AS k(key, gate, setting);

-- v_job_queue_backlog: by kind and state. What ended well is read from the tally and the little that it has not counted yet;
-- everything else is counted where it lies.
CREATE OR REPLACE VIEW substrate.v_job_queue_backlog AS
SELECT
    c.job_kind,
    c.state,
    sum(c.jobs)::bigint AS row_count,
    min(c.oldest_at) AS oldest_created_at,
    max(c.newest_at) AS newest_created_at,
    min(c.next_at) AS next_scheduled_at,
    round(sum(c.attempts) / nullif(sum(c.jobs), 0), 2) AS avg_attempts,
    max(c.attempts_max) AS max_attempts_made
FROM (
    SELECT q.job_kind, q.state, count(*) AS jobs, min(q.created_at) AS oldest_at, max(q.created_at) AS newest_at,
        min(q.scheduled_at) FILTER (WHERE q.state IN ('queued', 'retry_waiting')) AS next_at,
        sum(q.attempts)::numeric AS attempts, max(q.attempts) AS attempts_max
    FROM substrate.job_queue AS q
    WHERE q.state IN ('queued', 'retry_waiting', 'leased', 'in_progress', 'failed', 'dead_letter', 'cancelled')
    GROUP BY q.job_kind, q.state
    UNION ALL
    SELECT t.kind, CASE WHEN t.is_cleaned THEN 'cleaned' ELSE 'succeeded' END, t.jobs, t.oldest_at, t.newest_at, NULL,
        t.attempts::numeric, t.attempts_max
    FROM tenure.tally AS t
    WHERE t.profile = 'substrate'
    UNION ALL
    SELECT q.job_kind, q.state, count(*), min(q.created_at), max(q.created_at), NULL, sum(q.attempts)::numeric, max(q.attempts)
    FROM substrate.job_queue AS q
    WHERE q.state IN ('succeeded', 'cleaned') AND q.finished_at > (SELECT m.counted_until FROM tenure.tally_mark AS m)
    GROUP BY q.job_kind, q.state
) AS c
GROUP BY c.job_kind, c.state;

CREATE OR REPLACE VIEW substrate.v_job_dead_letter_summary AS
SELECT
    d.job_kind,
    d.triage_status,
    count(*) AS row_count,
    min(d.moved_at) AS oldest_moved_at,
    max(d.moved_at) AS newest_moved_at,
    round(avg(d.attempts), 2) AS avg_attempts,
    max(d.attempts) AS max_attempts_made
FROM substrate.job_dead_letter AS d
GROUP BY d.job_kind, d.triage_status;

-- v_queue_health: 25 columns. One row per executor, and one without an executor if there is none, so that the rest is never out of sight.
CREATE OR REPLACE VIEW substrate.v_queue_health AS
SELECT
    h.executor_name,
    h.executor_kind,
    h.last_tick_at,
    h.last_tick_status,
    h.ticks_total,
    h.current_job_id,
    h.lease_owner,
    EXTRACT(epoch FROM tenure.now() - h.last_tick_at)::double precision AS heartbeat_age_seconds,
    CASE
        WHEN h.executor_name IS NULL THEN NULL
        WHEN tenure.now() - h.last_tick_at <= t.threshold THEN 'fresh'
        WHEN tenure.now() - h.last_tick_at <= 2 * t.threshold THEN 'warning'
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
    g.job_substrate_enabled,
    g.worker_enabled,
    g.notify_enabled,
    g.heartbeat_enabled
FROM (
    SELECT
        coalesce(bool_and(g.is_open) FILTER (WHERE g.name = 'substrate.master'), true) AS job_substrate_enabled,
        coalesce(bool_and(g.is_open) FILTER (WHERE g.name = 'substrate.worker'), true) AS worker_enabled,
        coalesce(bool_and(g.is_open) FILTER (WHERE g.name = 'substrate.notify'), true) AS notify_enabled,
        coalesce(bool_and(g.is_open) FILTER (WHERE g.name = 'substrate.heartbeat'), true) AS heartbeat_enabled
    FROM tenure.gate AS g
) AS g
CROSS JOIN (
    SELECT (p.settings ->> 'queue.heartbeat.stale_threshold_seconds')::double precision * interval '1 second' AS threshold
    FROM tenure.profile AS p
    WHERE p.name = 'substrate'
) AS t
CROSS JOIN (
    SELECT
        coalesce(sum(c.jobs) FILTER (WHERE c.state = 'queued'), 0)::bigint AS queued,
        coalesce(sum(c.jobs) FILTER (WHERE c.state = 'leased'), 0)::bigint AS leased,
        coalesce(sum(c.jobs) FILTER (WHERE c.state = 'in_progress'), 0)::bigint AS in_progress,
        coalesce(sum(c.jobs) FILTER (WHERE c.state = 'succeeded'), 0)::bigint AS succeeded,
        coalesce(sum(c.jobs) FILTER (WHERE c.state = 'failed'), 0)::bigint AS failed,
        coalesce(sum(c.jobs) FILTER (WHERE c.state = 'retry_waiting'), 0)::bigint AS retry_waiting,
        coalesce(sum(c.jobs) FILTER (WHERE c.state = 'dead_letter'), 0)::bigint AS dead_letter,
        coalesce(sum(c.jobs) FILTER (WHERE c.state = 'cancelled'), 0)::bigint AS cancelled,
        coalesce(sum(c.jobs) FILTER (WHERE c.state = 'cleaned'), 0)::bigint AS cleaned
    FROM (
        SELECT q.state, count(*) AS jobs
        FROM substrate.job_queue AS q
        WHERE q.state IN ('queued', 'retry_waiting', 'leased', 'in_progress', 'failed', 'dead_letter', 'cancelled')
        GROUP BY q.state
        UNION ALL
        SELECT CASE WHEN t.is_cleaned THEN 'cleaned' ELSE 'succeeded' END, t.jobs FROM tenure.tally AS t WHERE t.profile = 'substrate'
        UNION ALL
        SELECT q.state, count(*)
        FROM substrate.job_queue AS q
        WHERE q.state IN ('succeeded', 'cleaned') AND q.finished_at > (SELECT m.counted_until FROM tenure.tally_mark AS m)
        GROUP BY q.state
    ) AS c
) AS j
CROSS JOIN (
    SELECT
        count(*) FILTER (WHERE l.triage = 'pending') AS pending,
        count(*) FILTER (WHERE l.triage = 'acknowledged') AS acknowledged,
        count(*) FILTER (WHERE l.triage = 'escalated') AS escalated
    FROM tenure.dead_letter AS l
    WHERE l.profile = 'substrate' AND l.state = 'dead' AND l.triage IN ('pending', 'acknowledged', 'escalated')
) AS d
LEFT JOIN substrate.queue_heartbeat AS h ON true;

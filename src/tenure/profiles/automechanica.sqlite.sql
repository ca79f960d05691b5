-- automechanica (specification 001) on SQLite: its tables as views. INSERT INTO tasks creates a task, and its agent's queue if need be.
-- A file has no logins: that an agent acts for itself alone is a rule of the database on PostgreSQL only.
-- Moments are text, as SQLite's own functions make and read it: datetime('now', '-5 minutes') compares with them.
DROP VIEW IF EXISTS automechanica_embedding_jobs;
DROP VIEW IF EXISTS automechanica_tasks;
CREATE VIEW automechanica_tasks AS
SELECT
    s.id,
    s.workflow_id,
    s.queue AS agent_name,
    s.kind AS task_type,
    s.payload,
    s.priority,
    CASE s.stage
        WHEN 'due' THEN 'pending'
        WHEN 'later' THEN 'pending'
        WHEN 'retry' THEN 'pending'
        WHEN 'waiting' THEN 'pending'
        WHEN 'leased' THEN 'leased'
        WHEN 'running' THEN 'running'
        WHEN 'succeeded' THEN 'completed'
        WHEN 'dead' THEN 'dead'
        ELSE 'failed'
    END AS status,
    s.attempt AS attempts,
    s.max_attempts,
    CASE WHEN s.stage <> 'waiting' OR s.run_at < 253402300799999999 THEN
        datetime(s.run_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.run_at / 1000 % 1000), -3) END AS available_at,
    s.lease_owner,
    datetime(s.lease_until / 1000000, 'unixepoch') || '.' || substr('00' || (s.lease_until / 1000 % 1000), -3) AS lease_expires_at,
    CASE WHEN s.failure_class IS NOT NULL THEN
        json_patch(
            CASE json_type(s.progress, '$.error_info') WHEN 'object' THEN json_extract(s.progress, '$.error_info') ELSE '{}' END,
            json_object('class', s.failure_class, 'message', s.last_error))
    END AS error_info,
    datetime(s.created_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.created_at / 1000 % 1000), -3) AS created_at,
    s.touched_text AS updated_at
FROM tenure_shown AS s
WHERE s.of_profile = 'automechanica';

CREATE TRIGGER automechanica_enqueue INSTEAD OF INSERT ON automechanica_tasks
BEGIN
    SELECT RAISE(ABORT, 'A task begins as pending, with no attempts made; its moves set lease_owner, lease_expires_at and error_info. Nothing was created.')
    WHERE coalesce(NEW.status, 'pending') <> 'pending' OR coalesce(NEW.attempts, 0) <> 0
        OR coalesce(NEW.lease_owner, NEW.lease_expires_at, NEW.error_info) IS NOT NULL;
    SELECT RAISE(ABORT, 'A task needs an agent_name. Nothing was created.') WHERE trim(coalesce(NEW.agent_name, '')) = '';
    SELECT RAISE(ABORT, 'Priorities are 0 critical, 1 high, 2 medium, 3 low. Nothing was created.') WHERE NEW.priority NOT BETWEEN 0 AND 3;
    SELECT RAISE(ABORT, 'available_at is no moment that SQLite reads, such as 2026-01-31 12:00:00. Nothing was created.')
    WHERE NEW.available_at IS NOT NULL AND julianday(NEW.available_at) IS NULL;
    INSERT INTO tenure_queue (
        name, profile, priority_order, priority_default, aging_seconds, start_on_claim, max_attempts,
        backoff_shape, backoff_base_seconds, backoff_power, backoff_factor, backoff_cap_seconds, backoff_jitter,
        lease_seconds, lease_max_seconds, key_scope, key_space, key_required, key_window_seconds, key_conflict,
        revive, on_unknown_kind, forbidden_keys, concurrency, concurrency_per_key, retain_seconds, events, agent_events,
        created_at, updated_at
    )
    SELECT
        NEW.agent_name, q.profile, q.priority_order, q.priority_default, q.aging_seconds, q.start_on_claim, q.max_attempts,
        q.backoff_shape, q.backoff_base_seconds, q.backoff_power, q.backoff_factor, q.backoff_cap_seconds, q.backoff_jitter,
        q.lease_seconds, q.lease_max_seconds, q.key_scope, q.key_space, q.key_required, q.key_window_seconds, q.key_conflict,
        q.revive, q.on_unknown_kind, q.forbidden_keys, q.concurrency, q.concurrency_per_key, q.retain_seconds, q.events, q.agent_events,
        CAST(strftime('%s', 'now') AS INTEGER) * 1000000, CAST(strftime('%s', 'now') AS INTEGER) * 1000000
    FROM tenure_queue AS q
    WHERE q.name = 'automechanica'
    -- A queue as a worker's start makes it, with the default policy and without any job, becomes the agent's.
    ON CONFLICT (name) DO UPDATE
    SET profile = excluded.profile,
        priority_order = excluded.priority_order,
        priority_default = excluded.priority_default,
        aging_seconds = excluded.aging_seconds,
        start_on_claim = excluded.start_on_claim,
        max_attempts = excluded.max_attempts,
        backoff_shape = excluded.backoff_shape,
        backoff_base_seconds = excluded.backoff_base_seconds,
        backoff_power = excluded.backoff_power,
        backoff_factor = excluded.backoff_factor,
        backoff_cap_seconds = excluded.backoff_cap_seconds,
        backoff_jitter = excluded.backoff_jitter,
        lease_seconds = excluded.lease_seconds,
        lease_max_seconds = excluded.lease_max_seconds,
        key_scope = excluded.key_scope,
        key_space = excluded.key_space,
        key_required = excluded.key_required,
        key_window_seconds = excluded.key_window_seconds,
        key_conflict = excluded.key_conflict,
        revive = excluded.revive,
        on_unknown_kind = excluded.on_unknown_kind,
        forbidden_keys = excluded.forbidden_keys,
        concurrency = excluded.concurrency,
        concurrency_per_key = excluded.concurrency_per_key,
        retain_seconds = excluded.retain_seconds,
        events = excluded.events,
        agent_events = excluded.agent_events,
        updated_at = excluded.updated_at
    WHERE tenure_queue.name <> 'default'
        AND tenure_queue.profile = 'default'
        AND tenure_queue.priority_order = 'high'
        AND tenure_queue.priority_default = 0
        AND tenure_queue.aging_seconds IS NULL
        AND tenure_queue.start_on_claim = 1
        AND tenure_queue.max_attempts = 3
        AND tenure_queue.backoff_shape = 'exponential'
        AND tenure_queue.backoff_base_seconds = 5
        AND tenure_queue.backoff_power = 2
        AND tenure_queue.backoff_factor = 2
        AND tenure_queue.backoff_cap_seconds = 3600
        AND tenure_queue.backoff_jitter = 0.1
        AND tenure_queue.lease_seconds = 60
        AND tenure_queue.lease_max_seconds = 86400
        AND tenure_queue.key_scope = 'active'
        AND tenure_queue.key_space = 'kind'
        AND tenure_queue.key_required = 0
        AND tenure_queue.key_window_seconds = 86400
        AND tenure_queue.key_conflict = 'error'
        AND tenure_queue.revive = 'revive'
        AND tenure_queue.on_unknown_kind = 'leave'
        AND tenure_queue.forbidden_keys IS NULL
        AND tenure_queue.concurrency IS NULL
        AND tenure_queue.concurrency_per_key IS NULL
        AND tenure_queue.retain_seconds = 604800
        AND tenure_queue.events = 0
        AND tenure_queue.agent_events = 'none'
        AND NOT EXISTS (SELECT 1 FROM tenure_job AS j WHERE j.queue = tenure_queue.name);
    INSERT INTO tenure_inbox (id, profile, queue, kind, payload, priority, max_attempts, workflow_id, run_at)
    VALUES (
        NEW.id, 'automechanica', NEW.agent_name, NEW.task_type, coalesce(NEW.payload, '{}'), NEW.priority, NEW.max_attempts, NEW.workflow_id,
        CAST(round((julianday(NEW.available_at) - 2440587.5) * 86400000) AS INTEGER) * 1000
    );
    -- It counts as a task of the workflow that it names.
    SELECT RAISE(ABORT, 'The workflow has ended, so no task can join it. Nothing was created. Start a new one, or leave workflow_id out.')
    FROM tenure_workflow AS w
    WHERE w.id = lower(NEW.workflow_id) AND w.state IN ('completed', 'failed', 'cancelled');
    INSERT INTO tenure_task (job_id, workflow_id, name, is_released)
    SELECT i.id, w.id, NEW.task_type || '/' || i.id, 1
    FROM tenure_inserted AS i
    JOIN tenure_workflow AS w ON w.id = lower(NEW.workflow_id)
    WHERE i.profile = 'automechanica' AND i.is_duplicate = 0
    ON CONFLICT DO NOTHING;
    UPDATE tenure_workflow SET total = total + changes() WHERE id = lower(NEW.workflow_id) AND changes() > 0;
END;

-- SQLite's RETURNING shows what was given. RETURNING (SELECT id FROM automechanica_tasks_inserted) shows what was made, or found under the key.
DROP VIEW IF EXISTS automechanica_tasks_inserted;
CREATE VIEW automechanica_tasks_inserted AS
SELECT j.id AS id, j.kind AS task_type, i.is_duplicate AS duplicate
FROM tenure_inserted AS i
JOIN tenure_job AS j ON j.id = i.id
WHERE i.profile = 'automechanica';

-- Without these an UPDATE or DELETE … RETURNING would answer as if it had been done.
CREATE TRIGGER automechanica_refuse_update INSTEAD OF UPDATE ON automechanica_tasks
BEGIN
    SELECT RAISE(ABORT, 'A task is not changed by UPDATE: it could come from a worker that lost its lease. Nothing was changed. Claim, complete and fail tasks through App or the tenure command; tenure jobs cancel and tenure jobs revive are for operators.');
END;
CREATE TRIGGER automechanica_refuse_delete INSTEAD OF DELETE ON automechanica_tasks
BEGIN
    SELECT RAISE(ABORT, 'A task is not removed by DELETE: its worker would work for nothing, and no record of it would remain. Nothing was changed. Use tenure jobs cancel for one that is not done; tenure prune removes what ended long ago.');
END;

DROP VIEW IF EXISTS automechanica_workflows;
CREATE VIEW automechanica_workflows AS
SELECT
    w.id,
    w.kind AS workflow_type,
    CASE WHEN w.state = 'running' AND w.phase <> 'loading' AND NOT EXISTS (
        SELECT 1
        FROM tenure_task AS t
        JOIN tenure_job AS j ON j.id = t.job_id
        WHERE t.workflow_id = w.id AND t.is_released = 1 AND t.outcome IS NULL AND j.state <> 'waiting'
    ) AND NOT EXISTS (SELECT 1 FROM tenure_workflow_event AS v WHERE v.workflow_id = w.id AND v.kind <> 'look')
    THEN 'waiting' ELSE w.state END AS status,
    w.phase AS current_step,
    w.data,
    w.error,
    datetime(w.created_at / 1000000, 'unixepoch') || '.' || substr('00' || (w.created_at / 1000 % 1000), -3) AS created_at,
    datetime(w.updated_at / 1000000, 'unixepoch') || '.' || substr('00' || (w.updated_at / 1000 % 1000), -3) AS updated_at,
    datetime(w.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (w.finished_at / 1000 % 1000), -3) AS completed_at,
    w.total AS tasks_total,
    w.succeeded AS tasks_completed,
    w.failed AS tasks_failed,
    (
        SELECT coalesce(e.person, e.target ->> 'queue')
        FROM tenure_escalation AS e
        WHERE e.workflow_id = w.id AND e.state = 'open'
        ORDER BY e.level DESC
        LIMIT 1
    ) AS escalation
FROM tenure_workflow AS w
WHERE w.profile = 'automechanica';

DROP VIEW IF EXISTS automechanica_agent_events;
CREATE VIEW automechanica_agent_events AS
SELECT
    e.id,
    e.job_id AS task_id,
    e.workflow_id,
    e.agent AS agent_name,
    e.kind AS event_type,
    e.data,
    datetime(e.at / 1000000, 'unixepoch') || '.' || substr('00' || (e.at / 1000 % 1000), -3) AS created_at
FROM tenure_agent_event AS e;

-- Written by Tenure with the end of a task, in queue `embedding`, which belongs to no profile.
CREATE VIEW automechanica_embedding_jobs AS
SELECT
    s.id,
    json_extract(s.payload, '$.agent_event_id') AS agent_event_id,
    CASE s.stage
        WHEN 'leased' THEN 'leased'
        WHEN 'running' THEN 'running'
        WHEN 'succeeded' THEN 'completed'
        WHEN 'dead' THEN 'dead'
        WHEN 'failed' THEN 'failed'
        WHEN 'cancelled' THEN 'failed'
        ELSE 'pending'
    END AS status,
    s.attempt AS attempts,
    s.max_attempts,
    CASE WHEN s.failure_class IS NOT NULL THEN json_object('class', s.failure_class, 'message', s.last_error) END AS error_info,
    datetime(s.created_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.created_at / 1000 % 1000), -3) AS created_at,
    s.touched_text AS updated_at
FROM tenure_shown AS s
WHERE s.queue = 'embedding' AND s.kind = 'embedding';

-- One row per minute and agent.
DROP VIEW IF EXISTS automechanica_task_queue_metrics;
CREATE VIEW automechanica_task_queue_metrics AS
SELECT
    datetime(m.minute / 1000000, 'unixepoch') || '.' || substr('00' || (m.minute / 1000 % 1000), -3) AS minute,
    m.queue AS agent_name,
    m.created AS tasks_created,
    m.completed AS tasks_completed,
    m.failed AS tasks_failed,
    m.latency_seconds / nullif(m.completed, 0) AS average_latency,
    m.heartbeat_delay_seconds AS worker_heartbeat_delay,
    CAST(m.attempts_failed AS REAL) / nullif(m.completed + m.attempts_failed, 0) AS error_rates_per_agent
FROM tenure_metric AS m
WHERE m.profile = 'automechanica';

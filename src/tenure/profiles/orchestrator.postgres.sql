-- orchestrator (specification 003) on PostgreSQL: its two tables as views. INSERT INTO tasks enqueues; workers take an INSERT
-- (a worker starts), an UPDATE (heartbeat, leadership) and a DELETE (a dead worker goes, its tasks come back).
CREATE SCHEMA IF NOT EXISTS orchestrator;

DO $type$
BEGIN
    CREATE TYPE orchestrator.task_status AS ENUM ('pending', 'claimed', 'running', 'completed', 'failed', 'dead_letter');
EXCEPTION WHEN duplicate_object THEN
    NULL;  -- Installed before.
END
$type$;

CREATE OR REPLACE VIEW orchestrator.tasks AS
SELECT
    s.id,
    s.kind::text AS type,
    s.payload::jsonb AS payload,
    CASE s.stage
        WHEN 'due' THEN 'pending'::orchestrator.task_status
        WHEN 'later' THEN 'pending'::orchestrator.task_status
        WHEN 'retry' THEN 'pending'::orchestrator.task_status
        WHEN 'waiting' THEN 'pending'::orchestrator.task_status
        WHEN 'leased' THEN 'claimed'::orchestrator.task_status
        WHEN 'running' THEN 'running'::orchestrator.task_status
        WHEN 'succeeded' THEN 'completed'::orchestrator.task_status
        WHEN 'dead' THEN 'dead_letter'::orchestrator.task_status
        ELSE 'failed'::orchestrator.task_status
    END AS status,
    s.priority,
    s.idempotency_key,
    s.lease_owner AS worker_id,
    s.created_at,
    s.claimed_at,
    s.started_at,
    s.finished_at AS completed_at,
    s.updated_at,
    s.attempt::integer AS attempts,
    s.max_attempts - 1 AS max_retries,
    s.last_error,
    CASE s.stage WHEN 'retry' THEN s.run_at END AS next_retry_at
FROM tenure.shown AS s
WHERE s.of_profile = 'orchestrator';

-- The expression is that of the view above.
SELECT tenure.index_view('orchestrator', $status$
    CASE s.stage
        WHEN 'due' THEN 'pending'::orchestrator.task_status
        WHEN 'later' THEN 'pending'::orchestrator.task_status
        WHEN 'retry' THEN 'pending'::orchestrator.task_status
        WHEN 'waiting' THEN 'pending'::orchestrator.task_status
        WHEN 'leased' THEN 'claimed'::orchestrator.task_status
        WHEN 'running' THEN 'running'::orchestrator.task_status
        WHEN 'succeeded' THEN 'completed'::orchestrator.task_status
        WHEN 'dead' THEN 'dead_letter'::orchestrator.task_status
        ELSE 'failed'::orchestrator.task_status
    END
$status$);

CREATE OR REPLACE FUNCTION orchestrator.enqueue_task() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_put json;
BEGIN
    IF coalesce(NEW.status, 'pending') <> 'pending' OR coalesce(NEW.attempts, 0) <> 0 THEN
        RAISE EXCEPTION 'A task begins as pending, with no attempts made. Nothing was enqueued.' USING ERRCODE = 'TN008';
    END IF;
    v_put := tenure.put_job('orchestrator', 'orchestrator', NEW.type, json_build_object(
        'i', NEW.id, 'p', NEW.payload, 'r', NEW.priority, 'm', NEW.max_retries + 1, 'k', NEW.idempotency_key));
    SELECT * INTO NEW FROM orchestrator.tasks AS t WHERE t.id = (v_put ->> 'id')::uuid;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER enqueue INSTEAD OF INSERT ON orchestrator.tasks
FOR EACH ROW EXECUTE FUNCTION orchestrator.enqueue_task();

-- refuse_change: an UPDATE or DELETE of tasks is an error, also one that would find no row: whoever writes it means something else.
CREATE OR REPLACE FUNCTION orchestrator.refuse_change() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'Tasks are not changed by % on orchestrator.tasks: a write that names no grant could come from a worker that lost its lease. '
        'Nothing was changed.', TG_OP
        USING ERRCODE = 'TN008', HINT = 'Claim, complete and fail tasks through App, the tenure command or tenure.claim and tenure.settle; '
            'tenure.cancel and tenure.revive are for operators.';
END
$$;
CREATE OR REPLACE TRIGGER refuse INSTEAD OF UPDATE OR DELETE ON orchestrator.tasks
FOR EACH ROW EXECUTE FUNCTION orchestrator.refuse_change();
CREATE OR REPLACE TRIGGER refuse_all BEFORE UPDATE OR DELETE ON orchestrator.tasks
FOR EACH STATEMENT EXECUTE FUNCTION orchestrator.refuse_change();

-- update_updated_at_column: refreshes updated_at in an UPDATE that does not move it itself. Claims, heartbeats and completions
-- do, so it is for changes by hand.
CREATE OR REPLACE FUNCTION orchestrator.update_updated_at_column() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    NEW.updated_at := greatest(tenure.now(), OLD.updated_at + interval '1 microsecond');
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER update_tasks_updated_at BEFORE UPDATE ON tenure.job
FOR EACH ROW WHEN (NEW.updated_at = OLD.updated_at AND NEW.profile = 'orchestrator')
EXECUTE FUNCTION orchestrator.update_updated_at_column();

-- One row of tenure.lease decides who leads; a worker is shown as leader while that lease is its own.
CREATE OR REPLACE VIEW orchestrator.workers AS
SELECT
    w.id,
    w.hostname,
    w.started_at,
    w.last_seen_at AS last_heartbeat,
    w.concurrency AS pool_size,
    nullif(w.version, '') AS version,
    l.until IS NOT NULL AS is_leader,
    l.until AS leader_until
FROM tenure.worker AS w
LEFT JOIN tenure.lease AS l ON l.name = 'leader' AND l.owner = w.id AND l.until > tenure.now()
WHERE w.queues && ARRAY(SELECT q.name FROM tenure.queue AS q WHERE q.profile = 'orchestrator');

-- change_worker: what an INSERT, UPDATE or DELETE on workers means.
-- Leadership: the caller's condition only says when to try. Two may find it true at once; the lease's row lets one of them through,
-- and the other's UPDATE changes no row, as the specification has it for one who does not lead.
CREATE OR REPLACE FUNCTION orchestrator.change_worker() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_lease json;
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM tenure.remove_workers(json_build_object('ids', json_build_array(OLD.id)));
        RETURN OLD;
    END IF;
    IF TG_OP = 'INSERT' OR NEW.last_heartbeat IS DISTINCT FROM OLD.last_heartbeat OR NEW.pool_size IS DISTINCT FROM OLD.pool_size
        OR NEW.version IS DISTINCT FROM OLD.version
    THEN
        PERFORM tenure.refresh_worker(
            json_build_object(
                'id', NEW.id, 'hostname', NEW.hostname, 'pid', coalesce(substring(NEW.id FROM '-(\d{1,9})-')::integer, 0),
                'queues', (SELECT json_agg(q.name) FROM tenure.queue AS q WHERE q.profile = 'orchestrator'), 'kinds', '[]'::json,
                'concurrency', coalesce(NEW.pool_size, 1), 'version', coalesce(NEW.version, ''), 'executor_kind', 'external_worker',
                'status', 'ok', 'info', '{}'::json),
            true, v_now);
    END IF;
    IF NEW.is_leader AND (TG_OP = 'INSERT' OR NOT OLD.is_leader OR NEW.leader_until IS DISTINCT FROM OLD.leader_until) THEN
        v_lease := tenure.acquire_lease(json_build_object(
            'name', 'leader', 'owner', NEW.id,
            'seconds', greatest(1, coalesce(EXTRACT(epoch FROM NEW.leader_until - clock_timestamp()), 30))));
        IF NOT (v_lease ->> 'acquired')::boolean THEN
            RETURN NULL;
        END IF;
    ELSIF TG_OP = 'UPDATE' AND OLD.is_leader AND NOT NEW.is_leader THEN
        PERFORM tenure.release_lease(json_build_object(
            'name', 'leader', 'owner', NEW.id, 'term', (SELECT l.term FROM tenure.lease AS l WHERE l.name = 'leader')));
    END IF;
    SELECT * INTO NEW FROM orchestrator.workers AS w WHERE w.id = NEW.id;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER change INSTEAD OF INSERT OR UPDATE OR DELETE ON orchestrator.workers
FOR EACH ROW EXECUTE FUNCTION orchestrator.change_worker();

SELECT tenure.hand_over('orchestrator', '{
    "SELECT ON tasks": "worker reader operator admin",
    "SELECT (id) ON tasks": "producer",
    "INSERT ON tasks": "producer worker operator admin",
    "SELECT ON workers": "worker reader operator admin",
    "INSERT ON workers": "worker admin",
    "UPDATE ON workers": "worker admin",
    "DELETE ON workers": "worker admin"
}');

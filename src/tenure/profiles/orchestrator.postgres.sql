-- orchestrator (specification 003) on PostgreSQL. `tasks` is a real table, so that the specification's own
-- INSERT … ON CONFLICT (type, idempotency_key) DO UPDATE … RETURNING id runs as printed: PostgreSQL takes that clause on no view with a
-- trigger. An INSERT there enqueues; every move of a job of this profile is written into its row of `tasks` by the same transaction.
-- `workers` is a view that takes an INSERT (a worker starts), an UPDATE (heartbeat, leadership) and a DELETE (a dead worker goes, its
-- tasks come back).
--
-- Locks are taken in one order: the job (its row, or the slot of its key), then its row in `tasks`. An INSERT INTO tasks takes the slot in a
-- BEFORE trigger and its own row after it; App.enqueue and workers write the job first and its row in a trigger.
CREATE SCHEMA IF NOT EXISTS orchestrator;

DO $type$
BEGIN
    CREATE TYPE orchestrator.task_status AS ENUM ('pending', 'claimed', 'running', 'completed', 'failed', 'dead_letter');
EXCEPTION WHEN duplicate_object THEN
    NULL;  -- Installed before.
END
$type$;

-- Columns without a default get one from the queue's policy, in the trigger below.
CREATE TABLE IF NOT EXISTS orchestrator.tasks (
    id uuid,
    type text NOT NULL,
    payload jsonb,
    status orchestrator.task_status NOT NULL DEFAULT 'pending',
    priority integer NOT NULL,
    idempotency_key text,
    worker_id text,
    created_at timestamptz NOT NULL DEFAULT now(),
    claimed_at timestamptz,
    started_at timestamptz,
    completed_at timestamptz,
    updated_at timestamptz NOT NULL DEFAULT now(),
    attempts integer NOT NULL DEFAULT 0,
    max_retries integer NOT NULL,
    last_error text,
    next_retry_at timestamptz,
    CONSTRAINT tasks_pkey PRIMARY KEY (id),
    CONSTRAINT unique_idempotency_key UNIQUE (type, idempotency_key)
);
-- The specification's predicate has NOW() in it, which PostgreSQL takes in no index.
CREATE INDEX IF NOT EXISTS idx_tasks_claimable ON orchestrator.tasks (priority DESC, created_at ASC) WHERE status = 'pending';
CREATE INDEX IF NOT EXISTS idx_tasks_status ON orchestrator.tasks (status, created_at);
CREATE INDEX IF NOT EXISTS idx_tasks_completed ON orchestrator.tasks (status, completed_at);
-- Dead letters are few beside all tasks, and written in the order in which tasks die: with an index of their own, in that order, a look at any
-- of them is no read of the table.
CREATE INDEX IF NOT EXISTS idx_tasks_dead ON orchestrator.tasks (completed_at) WHERE status = 'dead_letter';
CREATE INDEX IF NOT EXISTS idx_tasks_type_status ON orchestrator.tasks (type, status);
CREATE INDEX IF NOT EXISTS idx_tasks_worker_id ON orchestrator.tasks (worker_id) WHERE worker_id IS NOT NULL;

-- task_of: a job as its row in tasks. The key shows while the job holds it: a copy of an ended job, say, has the key's text but not the key.
CREATE OR REPLACE FUNCTION orchestrator.task_of(p_job tenure.job) RETURNS orchestrator.tasks
LANGUAGE sql STABLE
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT
        p_job.id,
        p_job.kind::text,
        nullif(tenure.readable(p_job.payload)::jsonb, 'null'),
        CASE p_job.state
            WHEN 'queued' THEN 'pending'
            WHEN 'waiting' THEN 'pending'
            WHEN 'leased' THEN 'claimed'
            WHEN 'running' THEN 'running'
            WHEN 'succeeded' THEN 'completed'
            WHEN 'dead' THEN 'dead_letter'
            ELSE 'failed'
        END::orchestrator.task_status,
        p_job.priority,
        CASE WHEN p_job.dedup_slot IS NOT NULL THEN p_job.idempotency_key END,
        p_job.lease_owner,
        p_job.created_at,
        p_job.claimed_at,
        p_job.started_at,
        p_job.finished_at,
        p_job.updated_at,
        p_job.attempt::integer,
        p_job.max_attempts - 1,
        p_job.last_error,
        CASE WHEN p_job.state = 'queued' AND p_job.failure_class IS NOT NULL AND p_job.attempt > 0 THEN p_job.run_at END
$$;

-- enqueue_task: what an INSERT INTO tasks means. A row whose job is there is written by keep_task and shows that job. Any other becomes a
-- job; a key that is taken leaves the row as it is, and the unique constraint then decides what the statement says: ON CONFLICT, or an error.
-- orchestrator.touched names the row that this INSERT writes, so that keep_task does not write it too.
CREATE OR REPLACE FUNCTION orchestrator.enqueue_task() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_put json;
    v_job tenure.job;
BEGIN
    SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = NEW.id AND j.profile = 'orchestrator';
    IF NOT FOUND THEN
        IF NEW.status <> 'pending' OR NEW.attempts <> 0
            OR num_nonnulls(NEW.worker_id, NEW.claimed_at, NEW.started_at, NEW.completed_at, NEW.last_error, NEW.next_retry_at) > 0
        THEN
            RAISE EXCEPTION 'A task begins as pending, with no attempts made; its moves set worker_id, claimed_at, started_at, completed_at, last_error and next_retry_at. '
                'Nothing was enqueued.' USING ERRCODE = 'TN008';
        END IF;
        NEW.id := coalesce(NEW.id, tenure.new_id(tenure.now()));
        PERFORM set_config('orchestrator.touched', NEW.id::text, true);
        v_put := tenure.put_job('orchestrator', 'orchestrator', NEW.type, json_build_object(
            'i', NEW.id, 'p', NEW.payload, 'r', NEW.priority, 'm', NEW.max_retries::bigint + 1, 'k', NEW.idempotency_key));
        IF (v_put ->> 'duplicate')::boolean THEN
            IF NOT coalesce((SELECT tenure.is_seen(j.enqueued_by, j.lease_login) FROM tenure.job AS j WHERE j.id = (v_put ->> 'id')::uuid), false) THEN
                RAISE EXCEPTION 'Key % of type % is held by a task of another login. Nothing was enqueued. Use another key.',
                    quote_literal(NEW.idempotency_key), quote_literal(NEW.type) USING ERRCODE = 'TN004';
            END IF;
            NEW.priority := coalesce(NEW.priority, 0);
            NEW.max_retries := coalesce(NEW.max_retries, 0);
            RETURN NEW;
        END IF;
        SELECT * INTO STRICT v_job FROM tenure.job AS j WHERE j.id = NEW.id;
    END IF;
    SELECT * INTO NEW FROM orchestrator.task_of(v_job);
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER enqueue BEFORE INSERT ON orchestrator.tasks
FOR EACH ROW EXECUTE FUNCTION orchestrator.enqueue_task();

-- refuse_task_without_job: the job that held the key was deleted between the look at it and this INSERT.
CREATE OR REPLACE FUNCTION orchestrator.refuse_task_without_job() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.id = NEW.id) THEN
        RAISE EXCEPTION 'The task that held the key % was removed at this moment. Nothing was enqueued. Repeat the INSERT.',
            quote_literal(NEW.idempotency_key) USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER refuse_without_job AFTER INSERT ON orchestrator.tasks
FOR EACH ROW EXECUTE FUNCTION orchestrator.refuse_task_without_job();

-- keep_task: write a job's move into its row of tasks, in the transaction of the move.
CREATE OR REPLACE FUNCTION orchestrator.keep_task() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM orchestrator.tasks AS t WHERE t.id = OLD.id;
        RETURN NULL;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        UPDATE orchestrator.tasks AS t
        SET payload = n.payload,
            status = n.status,
            priority = n.priority,
            idempotency_key = n.idempotency_key,
            worker_id = n.worker_id,
            claimed_at = n.claimed_at,
            started_at = n.started_at,
            completed_at = n.completed_at,
            updated_at = n.updated_at,
            attempts = n.attempts,
            max_retries = n.max_retries,
            last_error = n.last_error,
            next_retry_at = n.next_retry_at
        FROM orchestrator.task_of(NEW) AS n
        WHERE t.id = NEW.id;
        IF FOUND THEN
            RETURN NULL;
        END IF;
    ELSIF current_setting('orchestrator.touched', true) = NEW.id::text THEN
        RETURN NULL;  -- The INSERT INTO tasks that enqueued this job writes the row itself.
    END IF;
    INSERT INTO orchestrator.tasks (id, type) VALUES (NEW.id, NEW.kind) ON CONFLICT (id) DO NOTHING;
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER orchestrator_task_made AFTER INSERT ON tenure.job
FOR EACH ROW WHEN (NEW.profile = 'orchestrator') EXECUTE FUNCTION orchestrator.keep_task();
CREATE OR REPLACE TRIGGER orchestrator_task_moved AFTER UPDATE ON tenure.job
FOR EACH ROW WHEN (NEW.profile = 'orchestrator') EXECUTE FUNCTION orchestrator.keep_task();
CREATE OR REPLACE TRIGGER orchestrator_task_gone AFTER DELETE ON tenure.job
FOR EACH ROW WHEN (OLD.profile = 'orchestrator') EXECUTE FUNCTION orchestrator.keep_task();

-- Jobs that came into the profile before it was installed.
INSERT INTO orchestrator.tasks (id, type)
SELECT j.id, j.kind
FROM tenure.job AS j
WHERE j.profile = 'orchestrator' AND NOT EXISTS (SELECT 1 FROM orchestrator.tasks AS t WHERE t.id = j.id)
ON CONFLICT (id) DO NOTHING;

-- refuse_change: an UPDATE, DELETE or TRUNCATE of tasks is an error, also one that would find no row: it could come from a worker that lost its lease.
-- Moves of jobs come through a trigger, at a depth above 1. updated_at alone may be set: ON CONFLICT … DO UPDATE does.
CREATE OR REPLACE FUNCTION orchestrator.refuse_change() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    IF pg_trigger_depth() > 1 THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'Tasks are not changed by % on orchestrator.tasks: a write that names no grant could come from a worker that lost its lease. '
        'Nothing was changed.', TG_OP
        USING ERRCODE = 'TN008', HINT = 'Claim, complete and fail tasks through App, the tenure command or tenure.claim and tenure.settle; '
            'tenure.cancel and tenure.revive are for operators.';
END
$$;
CREATE OR REPLACE TRIGGER refuse_update BEFORE UPDATE OF id, type, payload, status, priority, idempotency_key, worker_id, created_at,
    claimed_at, started_at, completed_at, attempts, max_retries, last_error, next_retry_at ON orchestrator.tasks
FOR EACH STATEMENT EXECUTE FUNCTION orchestrator.refuse_change();
CREATE OR REPLACE TRIGGER refuse_delete BEFORE DELETE ON orchestrator.tasks
FOR EACH STATEMENT EXECUTE FUNCTION orchestrator.refuse_change();
CREATE OR REPLACE TRIGGER refuse_truncate BEFORE TRUNCATE ON orchestrator.tasks
FOR EACH STATEMENT EXECUTE FUNCTION orchestrator.refuse_change();

-- update_updated_at_column: refreshes updated_at in an UPDATE by hand, of a task or of its job. Moves set it themselves.
CREATE OR REPLACE FUNCTION orchestrator.update_updated_at_column() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'orchestrator.tasks'::regclass OR pg_trigger_depth() = 1 THEN
        NEW.updated_at := greatest(tenure.now(), OLD.updated_at + interval '1 microsecond');
    END IF;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER update_tasks_updated_at BEFORE UPDATE ON orchestrator.tasks
FOR EACH ROW EXECUTE FUNCTION orchestrator.update_updated_at_column();
CREATE OR REPLACE TRIGGER update_tasks_updated_at BEFORE UPDATE ON tenure.job
FOR EACH ROW WHEN (NEW.updated_at = OLD.updated_at AND NEW.profile = 'orchestrator')
EXECUTE FUNCTION orchestrator.update_updated_at_column();

-- is_own_task: whether the caller enqueued a task or its newest grant was made for it, or the task is not there yet: ON CONFLICT judges the
-- row that it proposes too.
CREATE OR REPLACE FUNCTION orchestrator.is_own_task(p_id uuid) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce((SELECT coalesce(tenure.login() IN (j.enqueued_by, j.lease_login), false) FROM tenure.job AS j WHERE j.id = p_id), true)
$$;

-- A producer sees only rows of its own, and a worker those that it holds too: a table cannot show a row without what it carries.
ALTER TABLE orchestrator.tasks ENABLE ROW LEVEL SECURITY;
DO $policy$
DECLARE
    v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY['tenure_producer', 'tenure_worker', 'tenure_reader', 'tenure_operator', 'tenure_admin'] LOOP
        EXECUTE format('DROP POLICY IF EXISTS %I ON orchestrator.tasks', v_role);
        CONTINUE WHEN NOT EXISTS (SELECT 1 FROM pg_roles AS r WHERE r.rolname = v_role);
        EXECUTE format('CREATE POLICY %1$I ON orchestrator.tasks TO %1$I USING (%2$s) WITH CHECK (true)', v_role,
            CASE WHEN v_role IN ('tenure_producer', 'tenure_worker') THEN 'orchestrator.is_own_task(id)' ELSE 'true' END);
    END LOOP;
END
$policy$;

-- One row of tenure.lease decides who leads this profile's workers; a worker is shown as leader while that lease is its own.
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
LEFT JOIN tenure.lease AS l ON l.name = 'leader:orchestrator' AND l.owner = w.id AND l.until > tenure.now()
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
    IF TG_OP <> 'INSERT' THEN
        PERFORM tenure.refuse_foreign_workers(CASE TG_OP WHEN 'UPDATE' THEN ARRAY[OLD.id, NEW.id] ELSE ARRAY[OLD.id] END, v_now);
    END IF;
    IF TG_OP = 'UPDATE' AND (NEW.id, NEW.hostname, NEW.started_at) IS DISTINCT FROM (OLD.id, OLD.hostname, OLD.started_at) THEN
        RAISE EXCEPTION 'Worker % keeps its id, hostname and started_at. Nothing was changed. Register another worker by INSERT.', quote_literal(OLD.id)
            USING ERRCODE = 'TN008';
    END IF;
    IF TG_OP = 'DELETE' THEN
        IF OLD.is_leader THEN
            PERFORM tenure.release_lease(json_build_object(
                'name', 'leader:orchestrator', 'owner', OLD.id, 'term', (SELECT l.term FROM tenure.lease AS l WHERE l.name = 'leader:orchestrator')));
        END IF;
        -- The worker may hold jobs of other profiles: those stay its own until their leases run out.
        PERFORM tenure.take_back_these(
            ARRAY(SELECT j.id FROM tenure.job AS j
                WHERE j.state IN ('leased', 'running') AND j.profile = 'orchestrator' AND j.lease_owner = OLD.id),
            'infinity', v_now);
        DELETE FROM tenure.worker AS w WHERE w.id = OLD.id;
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
            'name', 'leader:orchestrator', 'owner', NEW.id,
            'seconds', greatest(1, coalesce(EXTRACT(epoch FROM NEW.leader_until - clock_timestamp()), 30))));
        IF NOT (v_lease ->> 'acquired')::boolean THEN
            RETURN NULL;
        END IF;
    ELSIF TG_OP = 'UPDATE' AND OLD.is_leader AND NOT NEW.is_leader THEN
        PERFORM tenure.release_lease(json_build_object(
            'name', 'leader:orchestrator', 'owner', NEW.id, 'term', (SELECT l.term FROM tenure.lease AS l WHERE l.name = 'leader:orchestrator')));
    END IF;
    SELECT * INTO NEW FROM orchestrator.workers AS w WHERE w.id = NEW.id;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER change INSTEAD OF INSERT OR UPDATE OR DELETE ON orchestrator.workers
FOR EACH ROW EXECUTE FUNCTION orchestrator.change_worker();

SELECT tenure.hand_over('orchestrator', '{
    "SELECT ON tasks": "producer worker reader operator admin",
    "INSERT ON tasks": "producer worker operator admin",
    "UPDATE (updated_at) ON tasks": "producer worker operator admin",
    "EXECUTE ON FUNCTION is_own_task": "producer worker",
    "SELECT ON workers": "worker reader operator admin",
    "INSERT ON workers": "worker admin",
    "UPDATE ON workers": "worker admin",
    "DELETE ON workers": "worker admin"
}');

-- automechanica (specification 001) on PostgreSQL: its tables as views, and functions for the orchestrator and for agents.
-- The orchestrator is a login with one of Tenure's roles. An agent is a login that `grant_agent` has bound to its own queue: it may call
-- these functions and nothing else, and they let it touch the tasks of that queue alone.
CREATE SCHEMA IF NOT EXISTS automechanica;

-- agent: which logins are bound to which agents. A login without a row is no agent.
CREATE TABLE IF NOT EXISTS automechanica.agent (
    login name NOT NULL,
    agent_name text NOT NULL,
    bound_at timestamptz NOT NULL,
    bound_by text NOT NULL,
    PRIMARY KEY (login, agent_name)
);

CREATE OR REPLACE VIEW automechanica.tasks AS
SELECT
    s.id,
    s.workflow_id,
    s.queue AS agent_name,
    s.kind::text AS task_type,
    s.payload::jsonb AS payload,
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
    s.attempt::integer AS attempts,
    s.max_attempts::integer AS max_attempts,
    CASE s.stage WHEN 'waiting' THEN nullif(s.run_at, 'infinity') ELSE s.run_at END AS available_at,
    s.lease_owner,
    s.lease_until AS lease_expires_at,
    CASE WHEN s.failure_class IS NOT NULL THEN
        CASE jsonb_typeof(s.progress::jsonb -> 'error_info') WHEN 'object' THEN s.progress::jsonb -> 'error_info' ELSE '{}' END
            || jsonb_build_object('class', s.failure_class, 'message', s.last_error)
    END AS error_info,
    s.created_at,
    s.touched_at AS updated_at
FROM tenure.shown AS s
WHERE s.of_profile = 'automechanica';

-- The expression is that of the view above.
SELECT tenure.index_view('automechanica', $status$
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
    END
$status$,
    'coalesce(finished_at, updated_at)');

CREATE OR REPLACE VIEW automechanica.workflows AS
SELECT w.id, w.kind AS workflow_type,
    CASE WHEN w.state = 'running' AND w.phase <> 'loading' AND NOT EXISTS (
        SELECT 1
        FROM tenure.task AS t
        JOIN tenure.job AS j ON j.id = t.job_id
        WHERE t.workflow_id = w.id AND t.is_released AND t.outcome IS NULL AND j.state <> 'waiting'
    ) AND NOT EXISTS (SELECT 1 FROM tenure.workflow_event AS v WHERE v.workflow_id = w.id AND v.kind <> 'look')
    THEN 'waiting' ELSE w.state END AS status,
    w.phase AS current_step, tenure.readable(w.data)::jsonb AS data, w.error,
    w.created_at, w.updated_at, w.finished_at AS completed_at,
    w.total AS tasks_total, w.succeeded AS tasks_completed, w.failed AS tasks_failed,
    (
        SELECT coalesce(e.person, e.target ->> 'queue')
        FROM tenure.escalation AS e
        WHERE e.workflow_id = w.id AND e.state = 'open'
        ORDER BY e.level DESC
        LIMIT 1
    ) AS escalation
FROM tenure.workflow AS w
WHERE w.profile = 'automechanica';

CREATE OR REPLACE VIEW automechanica.agent_events AS
SELECT e.id, e.job_id AS task_id, e.workflow_id, e.agent AS agent_name, e.kind AS event_type, tenure.readable(e.data)::jsonb AS data,
    e.at AS created_at
FROM tenure.agent_event AS e;

-- Written by Tenure with the end of a task, in queue `embedding`, which belongs to no profile: others may put jobs there too.
CREATE OR REPLACE VIEW automechanica.embedding_jobs AS
SELECT
    s.id,
    CASE WHEN s.payload ->> 'agent_event_id' ~ '^[0-9]{1,18}$' THEN (s.payload ->> 'agent_event_id')::bigint END AS agent_event_id,
    CASE s.stage
        WHEN 'leased' THEN 'leased'
        WHEN 'running' THEN 'running'
        WHEN 'succeeded' THEN 'completed'
        WHEN 'dead' THEN 'dead'
        WHEN 'failed' THEN 'failed'
        WHEN 'cancelled' THEN 'failed'
        ELSE 'pending'
    END AS status,
    s.attempt::integer AS attempts,
    s.max_attempts::integer AS max_attempts,
    CASE WHEN s.failure_class IS NOT NULL THEN jsonb_build_object('class', s.failure_class, 'message', s.last_error) END AS error_info,
    s.created_at,
    s.touched_at AS updated_at
FROM tenure.shown AS s
WHERE s.queue = 'embedding' AND s.kind = 'embedding';

-- One row per minute and agent.
CREATE OR REPLACE VIEW automechanica.task_queue_metrics AS
SELECT
    m.minute,
    m.queue AS agent_name,
    m.created AS tasks_created,
    m.completed AS tasks_completed,
    m.failed AS tasks_failed,
    m.latency_seconds / nullif(m.completed, 0) AS average_latency,
    m.heartbeat_delay_seconds AS worker_heartbeat_delay,
    m.attempts_failed::double precision / nullif(m.completed + m.attempts_failed, 0) AS error_rates_per_agent
FROM tenure.metric AS m
WHERE m.profile = 'automechanica';

-- check_agent: an agent may only act for itself. Agents are the logins that grant_agent has bound, and the members of a role that it has bound;
-- who has one of Tenure's roles instead, as the orchestrator has, may act for all. No agent may enqueue: that tells the two apart.
CREATE OR REPLACE FUNCTION automechanica.check_agent(p_agent_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_login text := tenure.login();
BEGIN
    IF EXISTS (SELECT 1 FROM automechanica.agent AS a WHERE a.login = v_login AND a.agent_name = p_agent_name) THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT 1 FROM automechanica.agent AS a WHERE a.login = v_login)
        OR NOT tenure.may('enqueue') AND NOT EXISTS (
            SELECT 1
            FROM automechanica.agent AS a
            JOIN pg_roles AS r ON r.rolname = a.login
            WHERE a.agent_name = p_agent_name AND pg_has_role(v_login, r.oid, 'USAGE'))
    THEN
        RAISE EXCEPTION 'Agent login % may not act for agent %. Nothing was changed.', v_login, quote_nullable(p_agent_name)
            USING ERRCODE = 'TN010', HINT = 'Work for other agents is created by the orchestrator.';
    END IF;
END
$$;

-- create_task: {"workflow_id", "agent_name", "task_type", "payload", "priority", "max_attempts"} → the task's id.
CREATE OR REPLACE FUNCTION automechanica.create_task(p_task jsonb) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_agent text;
    v_priority integer;
    v_available timestamptz;
    v_wrong record;
    v_id uuid;
BEGIN
    IF jsonb_typeof(p_task) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'A task is an object with agent_name, task_type and payload, not %. Nothing was created.', left(p_task::text, 100)
            USING ERRCODE = 'TN007';
    END IF;
    SELECT e.key, w.is_known, w.wanted, left(e.value::text, 100) AS value INTO v_wrong
    FROM jsonb_each(p_task) AS e
    CROSS JOIN LATERAL (
        SELECT
            e.key IN ('id', 'workflow_id', 'agent_name', 'task_type', 'payload', 'priority', 'max_attempts', 'available_at') AS is_known,
            CASE
                WHEN e.key IN ('agent_name', 'task_type') AND jsonb_typeof(e.value) <> 'string' THEN 'a text'
                WHEN e.key = 'available_at' AND jsonb_typeof(e.value) NOT IN ('string', 'null') THEN 'a moment as text'
                WHEN e.key IN ('priority', 'max_attempts') AND e.value::text !~ '^(-?[0-9]{1,9}|null)$' THEN 'a whole number'
                WHEN e.key IN ('id', 'workflow_id') AND e.value <> 'null' AND tenure.as_uuid(e.value #>> '{}') IS NULL THEN 'a UUID'
            END AS wanted
    ) AS w
    WHERE NOT w.is_known OR w.wanted IS NOT NULL
    LIMIT 1;
    IF FOUND AND NOT v_wrong.is_known THEN
        RAISE EXCEPTION 'A task has no field %. Nothing was created.', quote_literal(v_wrong.key) USING ERRCODE = 'TN007';
    ELSIF FOUND THEN
        RAISE EXCEPTION 'A task''s % is %, not %. Nothing was created.', v_wrong.key, v_wrong.wanted, v_wrong.value USING ERRCODE = 'TN007';
    END IF;
    v_agent := p_task ->> 'agent_name';
    v_priority := (p_task ->> 'priority')::integer;
    IF coalesce(btrim(v_agent), '') = '' THEN
        RAISE EXCEPTION 'A task needs an agent_name. Nothing was created.' USING ERRCODE = 'TN007';
    END IF;
    IF v_priority NOT BETWEEN 0 AND 3 THEN
        RAISE EXCEPTION 'Priority is %; 0 is critical, 1 high, 2 medium, 3 low. Nothing was created.', v_priority USING ERRCODE = 'TN007';
    END IF;
    BEGIN
        v_available := p_task ->> 'available_at';
    EXCEPTION WHEN data_exception THEN
        RAISE EXCEPTION 'A task''s available_at is a moment, not %. Nothing was created.', left((p_task -> 'available_at')::text, 100)
            USING ERRCODE = 'TN007';
    END;
    PERFORM automechanica.check_agent(v_agent);
    PERFORM tenure.queue_like(v_agent, 'automechanica', 'automechanica');
    v_id := tenure.put_job('automechanica', v_agent, p_task ->> 'task_type', json_build_object(
        'i', p_task -> 'id', 'p', coalesce(p_task -> 'payload', '{}'), 'r', v_priority, 'm', p_task -> 'max_attempts',
        'a', tenure.to_us(v_available),
        'x', jsonb_strip_nulls(jsonb_build_object('workflow_id', p_task -> 'workflow_id')))) ->> 'id';
    PERFORM tenure.add_task(v_id);  -- it counts as a task of the workflow that it names
    RETURN v_id;
END
$$;

CREATE OR REPLACE FUNCTION automechanica.insert_task() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_id uuid;
BEGIN
    IF coalesce(NEW.status, 'pending') <> 'pending' OR coalesce(NEW.attempts, 0) <> 0
        OR num_nonnulls(NEW.lease_owner, NEW.lease_expires_at, NEW.error_info) > 0
    THEN
        RAISE EXCEPTION 'A task begins as pending, with no attempts made; its moves set lease_owner, lease_expires_at and error_info. '
            'Nothing was created.' USING ERRCODE = 'TN008';
    END IF;
    v_id := automechanica.create_task(jsonb_build_object(
        'id', NEW.id, 'workflow_id', NEW.workflow_id, 'agent_name', NEW.agent_name, 'task_type', NEW.task_type,
        'payload', coalesce(NEW.payload, '{}'),
        'priority', NEW.priority, 'max_attempts', NEW.max_attempts, 'available_at', NEW.available_at));
    SELECT * INTO NEW FROM automechanica.tasks AS t WHERE t.id = v_id;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER enqueue INSTEAD OF INSERT ON automechanica.tasks
FOR EACH ROW EXECUTE FUNCTION automechanica.insert_task();

-- refuse_change: an UPDATE or DELETE of tasks is an error even if it matches no row, so that a mistaken statement is noticed.
-- The right to UPDATE is given all the same: it lets the specification's SELECT … FOR UPDATE run.
CREATE OR REPLACE FUNCTION automechanica.refuse_change() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'Tasks are not changed by % on automechanica.tasks: a write that names no grant could come from a worker that lost its lease. '
        'Nothing was changed.', TG_OP
        USING ERRCODE = 'TN008', HINT = 'Use automechanica.claim_task, start_task, extend_lease, complete_task or fail_task; '
            'tenure.cancel and tenure.revive are for operators.';
END
$$;
CREATE OR REPLACE TRIGGER refuse INSTEAD OF UPDATE OR DELETE ON automechanica.tasks
FOR EACH ROW EXECUTE FUNCTION automechanica.refuse_change();
CREATE OR REPLACE TRIGGER refuse_all BEFORE UPDATE OR DELETE ON automechanica.tasks
FOR EACH STATEMENT EXECUTE FUNCTION automechanica.refuse_change();

-- claim_task: the SELECT and the three SETs of the specification's section 4, as one statement. Null if there is nothing to do.
CREATE OR REPLACE FUNCTION automechanica.claim_task(
    p_agent_name text, p_worker_id text, p_lease_seconds integer DEFAULT NULL, p_task_types text[] DEFAULT NULL
) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_grant json;
BEGIN
    PERFORM automechanica.check_agent(p_agent_name);
    IF NOT EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.name = p_agent_name AND q.profile = 'automechanica') THEN
        RETURN NULL;
    END IF;
    v_grant := tenure.claim(json_strip_nulls(json_build_object(
        'worker', p_worker_id, 'queues', json_build_array(p_agent_name), 'limit', 1, 'lease', p_lease_seconds, 'kinds', p_task_types)))
        #> '{lines,0,3,0}';
    RETURN (
        SELECT to_jsonb(t) || jsonb_build_object('token', (v_grant ->> 2)::bigint)
        FROM automechanica.tasks AS t
        WHERE t.id = (v_grant ->> 0)::uuid
    );
END
$$;

-- hold: the token of the grant that the caller has, null if it has none; refused if the task is another agent's.
CREATE OR REPLACE FUNCTION automechanica.hold(p_task_id uuid, p_worker_id text, p_token bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    PERFORM automechanica.check_agent(j.queue) FROM tenure.job AS j WHERE j.id = p_task_id;
    RETURN tenure.grant_of('automechanica', p_task_id, p_worker_id, p_token);
END
$$;

-- answer: what became of an act on a held task. VOLATILE: it must see what the act, in the same statement, has just done.
CREATE OR REPLACE FUNCTION automechanica.answer(p_task_id uuid, p_is_held boolean) RETURNS jsonb
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT CASE
        WHEN p_is_held THEN (SELECT jsonb_build_object('ok', true, 'task', to_jsonb(t)) FROM automechanica.tasks AS t WHERE t.id = p_task_id)
        ELSE jsonb_build_object('ok', false, 'error', 'lease_lost', 'message',
            'The task is not leased to this worker (any more). Nothing was changed. Claim again.')
    END
$$;

CREATE OR REPLACE FUNCTION automechanica.start_task(p_task_id uuid, p_worker_id text, p_token bigint DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_token bigint := automechanica.hold(p_task_id, p_worker_id, p_token);
BEGIN
    RETURN automechanica.answer(p_task_id,
        json_array_length(tenure.start(json_build_object('holds', json_build_array(json_build_object('i', p_task_id, 't', v_token))))) = 0);
END
$$;

-- extend_lease: the heartbeat. The task is running from then on.
CREATE OR REPLACE FUNCTION automechanica.extend_lease(
    p_task_id uuid, p_worker_id text, p_lease_seconds integer DEFAULT NULL, p_token bigint DEFAULT NULL
) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_token bigint := automechanica.hold(p_task_id, p_worker_id, p_token);
BEGIN
    RETURN automechanica.answer(p_task_id, json_array_length(tenure.heartbeat(json_strip_nulls(json_build_object(
        'holds', json_build_array(json_build_object('i', p_task_id, 't', v_token)), 'lease', p_lease_seconds))) -> 'lost') = 0);
END
$$;

CREATE OR REPLACE FUNCTION automechanica.complete_task(
    p_task_id uuid, p_worker_id text, p_result jsonb DEFAULT NULL, p_token bigint DEFAULT NULL
) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_token bigint := automechanica.hold(p_task_id, p_worker_id, p_token);
BEGIN
    RETURN automechanica.answer(p_task_id,
        tenure.settle_one(p_task_id, v_token, jsonb_build_object('o', 'complete', 'r', p_result)) IS NOT NULL);
END
$$;

-- fail_task: pending again after attempts² × 5 s, or dead when attempts are spent. `message` of error_info is the error; the rest stays.
-- An error_info that is no object is the error itself.
CREATE OR REPLACE FUNCTION automechanica.fail_task(p_task_id uuid, p_worker_id text, p_error_info jsonb, p_token bigint DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_token bigint := automechanica.hold(p_task_id, p_worker_id, p_token);
BEGIN
    PERFORM tenure.heartbeat(json_build_object('holds', json_build_array(json_build_object(
        'i', p_task_id, 't', v_token, 'p', json_build_object('error_info', p_error_info)))));
    RETURN automechanica.answer(p_task_id, tenure.settle_one(p_task_id, v_token, jsonb_build_object(
        'o', 'fail', 'c', 'error', 'e', coalesce(p_error_info ->> 'message', p_error_info #>> '{}', 'failed'))) IS NOT NULL);
END
$$;

-- grant_agent: bind a login to an agent. It gets what an agent and its worker need and nothing more.
CREATE OR REPLACE FUNCTION automechanica.grant_agent(p_login name, p_agent_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_role text;
BEGIN
    SELECT r.rolname INTO v_role
    FROM pg_roles AS r
    WHERE r.rolname IN ('tenure_owner', 'tenure_producer', 'tenure_worker', 'tenure_reader', 'tenure_operator', 'tenure_admin')
        AND pg_has_role(p_login, r.oid, 'MEMBER')
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'Login % has the role %, which reaches beyond one agent. It was not bound.', p_login, v_role
            USING ERRCODE = 'TN010', HINT = 'Revoke that role first, or use another login for the agent.';
    END IF;
    PERFORM tenure.queue_like(p_agent_name, 'automechanica', session_user);
    IF EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.name = p_agent_name AND q.profile <> 'automechanica') THEN
        RAISE EXCEPTION 'Queue % belongs to another profile, so it cannot be an agent''s.', quote_literal(p_agent_name) USING ERRCODE = 'TN010';
    END IF;
    PERFORM tenure.write_audit(tenure.now(), session_user, 'grant_agent', p_agent_name, NULL, json_build_object('login', p_login));
    INSERT INTO automechanica.agent (login, agent_name, bound_at, bound_by)
    VALUES (p_login, p_agent_name, tenure.now(), session_user)
    ON CONFLICT DO NOTHING;
    PERFORM tenure.bind_login(p_login, p_agent_name);
    EXECUTE format('GRANT USAGE ON SCHEMA automechanica TO %I', p_login);
    EXECUTE format('GRANT EXECUTE ON FUNCTION automechanica.create_task, automechanica.claim_task, automechanica.start_task, '
        'automechanica.extend_lease, automechanica.complete_task, automechanica.fail_task TO %I', p_login);
END
$$;

CREATE OR REPLACE FUNCTION automechanica.revoke_agent(p_login name, p_agent_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    PERFORM tenure.write_audit(tenure.now(), session_user, 'revoke_agent', p_agent_name, NULL, json_build_object('login', p_login));
    DELETE FROM automechanica.agent AS a WHERE a.login = p_login AND a.agent_name = p_agent_name;
    PERFORM tenure.unbind_login(p_login, p_agent_name);
    -- Without a row it would count as no agent at all, and so be free: its rights go first.
    IF NOT EXISTS (SELECT 1 FROM automechanica.agent AS a WHERE a.login = p_login) THEN
        EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA automechanica FROM %I', p_login);
        EXECUTE format('REVOKE ALL ON SCHEMA automechanica FROM %I', p_login);
    END IF;
END
$$;

SELECT tenure.hand_over('automechanica', '{
    "SELECT ON tasks": "worker reader operator admin",
    "SELECT (id) ON tasks": "producer",
    "INSERT ON tasks": "producer worker operator admin",
    "UPDATE ON tasks": "worker operator admin",
    "SELECT ON workflows": "reader operator admin",
    "SELECT ON agent_events": "reader operator admin",
    "SELECT ON embedding_jobs": "reader operator admin",
    "SELECT ON task_queue_metrics": "reader operator admin",
    "EXECUTE ON FUNCTION create_task": "producer worker operator admin",
    "EXECUTE ON FUNCTION claim_task": "worker admin",
    "EXECUTE ON FUNCTION start_task": "worker admin",
    "EXECUTE ON FUNCTION extend_lease": "worker admin",
    "EXECUTE ON FUNCTION complete_task": "worker admin",
    "EXECUTE ON FUNCTION fail_task": "worker admin",
    "EXECUTE ON FUNCTION grant_agent": "admin",
    "EXECUTE ON FUNCTION revoke_agent": "admin"
}');

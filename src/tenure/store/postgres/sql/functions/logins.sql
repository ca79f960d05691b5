-- Logins: who calls, and what that login may see and touch.

-- login: whom the caller acts as: the role that it has SET, otherwise its login. Functions that lend their owner's rights change
-- current_user, but neither of these; and a login can SET only a role that it is a member of. Logins that come and go, such as those of a
-- vault, keep one name among them by `ALTER ROLE … SET role = team`.
CREATE OR REPLACE FUNCTION tenure.login() RETURNS text
LANGUAGE sql STABLE
AS $$ SELECT CASE current_setting('role') WHEN 'none' THEN session_user::text ELSE current_setting('role') END $$;

-- may: whether the caller's own rights let it call this function of ours.
CREATE OR REPLACE FUNCTION tenure.may(p_function text) RETURNS boolean
LANGUAGE sql STABLE
AS $$ SELECT has_function_privilege(tenure.login(), 'tenure.' || p_function || '(json)', 'EXECUTE') $$;

-- reads_all: whether the caller may read every job: readers, operators, admins, and the owner of the schema.
CREATE OR REPLACE FUNCTION tenure.reads_all() RETURNS boolean
LANGUAGE sql STABLE
AS $$ SELECT tenure.may('count_jobs') $$;

-- is_seen: whether the caller may read what a job carries: its login enqueued it, or its newest grant was made for that login.
CREATE OR REPLACE FUNCTION tenure.is_seen(p_enqueued_by text, p_lease_login text) RETURNS boolean
LANGUAGE sql STABLE
AS $$ SELECT coalesce(tenure.login() IN (p_enqueued_by, p_lease_login), false) OR tenure.reads_all() $$;

-- is_known: whether the caller may be told that a job or run of this login is there. Workers may: they claim from every queue.
CREATE OR REPLACE FUNCTION tenure.is_known(p_enqueued_by text) RETURNS boolean
LANGUAGE sql STABLE
AS $$ SELECT coalesce(tenure.login() = p_enqueued_by, false) OR tenure.may('list_jobs') $$;

-- sees_job: is_seen, of a job by its id.
CREATE OR REPLACE FUNCTION tenure.sees_job(p_id uuid) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT tenure.reads_all() OR EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.id = p_id AND tenure.is_seen(j.enqueued_by, j.lease_login)) $$;

-- sees_run: whether the caller may read a workflow: its login started it, or holds a job of it.
CREATE OR REPLACE FUNCTION tenure.sees_run(p_id uuid, p_started_by text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(tenure.login() = p_started_by, false) OR tenure.reads_all()
        OR EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.workflow_id = p_id AND j.lease_login = tenure.login())
$$;

-- grant_role: give a login one of the five roles ('producer', 'worker', …), and bound how long its statements may run in this database:
-- PostgreSQL takes such a setting from the login alone, never from a role that it is a member of, and a SET of a function's own comes too late
-- for the statement that calls it. p_timeout as PostgreSQL writes it ('45s'; '0' is no bound); left out, it is the role's.
-- Runs with the rights of its caller, who must be able to grant the role and to alter the login. No role may call it.
CREATE OR REPLACE FUNCTION tenure.grant_role(p_login name, p_role text, p_timeout text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_timeout text := coalesce(p_timeout, CASE p_role WHEN 'producer' THEN '30s' WHEN 'worker' THEN '1min' WHEN 'reader' THEN '1min' ELSE '10min' END);
BEGIN
    IF p_role IS NULL OR p_role NOT IN ('producer', 'worker', 'reader', 'operator', 'admin') THEN
        RAISE EXCEPTION 'There is no role %; there are producer, worker, reader, operator and admin. Nothing was granted.', quote_nullable(p_role)
            USING ERRCODE = 'TN007';
    END IF;
    EXECUTE format('GRANT %I TO %I', 'tenure_' || p_role, p_login);
    EXECUTE format('ALTER ROLE %I IN DATABASE %I SET statement_timeout = %L', p_login, current_database(), v_timeout);
END
$$;

-- refuse_unbound: a login that is bound to queues claims from no other.
CREATE OR REPLACE FUNCTION tenure.refuse_unbound(p_queues text[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_other text;
BEGIN
    SELECT n.name INTO v_other
    FROM unnest(p_queues) AS n(name)
    WHERE NOT EXISTS (SELECT 1 FROM tenure.login_queue AS b WHERE b.login = tenure.login() AND b.queue = n.name)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'Login % may not claim from queue %. Nothing was claimed.', tenure.login(), quote_literal(v_other)
            USING ERRCODE = 'TN010', HINT = 'It works for the queues that it is bound to; a worker of all queues has the role tenure_worker.';
    END IF;
END
$$;

-- bind_login: let a login without any of our roles work for one queue: claim, keep, settle, and what a handler records on the way.
-- A step of a profile's own grants; no role may call it.
CREATE OR REPLACE FUNCTION tenure.bind_login(p_login name, p_queue text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_function text;
BEGIN
    INSERT INTO tenure.login_queue (login, queue) VALUES (p_login, p_queue) ON CONFLICT DO NOTHING;
    EXECUTE format('GRANT USAGE ON SCHEMA tenure TO %I', p_login);
    FOR v_function IN
        SELECT p.oid::regprocedure::text
        FROM pg_proc AS p
        WHERE p.pronamespace = 'tenure'::regnamespace
            AND p.proname IN (
                'now', 'now_us', 'to_us', 'from_us', 'schema_version', 'schema_checksum', 'schema_compatible_from',
                'exchange', 'claim', 'settle', 'start', 'heartbeat',
                'append_events', 'append_streams', 'record_effect', 'record_steps', 'fill_group', 'list_steps', 'get_group', 'list_children',
                'sweep_flow', 'advance_workflows', 'get_jobs', 'list_queues', 'list_profiles')
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_function, p_login);
    END LOOP;
END
$$;

-- unbind_login: take one queue from a login, and with its last the rights.
CREATE OR REPLACE FUNCTION tenure.unbind_login(p_login name, p_queue text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    DELETE FROM tenure.login_queue AS b WHERE b.login = p_login AND b.queue = p_queue;
    IF NOT EXISTS (SELECT 1 FROM tenure.login_queue AS b WHERE b.login = p_login) THEN
        EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA tenure FROM %I', p_login);
        EXECUTE format('REVOKE ALL ON SCHEMA tenure FROM %I', p_login);
    END IF;
END
$$;

-- What the SQL of a profile builds upon.

-- What profiles are built from. Nothing here knows one by name: a profile is a row, views over tenure.shown, and calls of these.

-- install_profile: {"name", "title", "policy", "words", "settings", "shows", "checksum", "queues", "closed", "actor"} → what is new.
-- Repeated, it changes words and checksum only: queues, gates and settings stay as operators have set them. A queue of profile `default`
-- that has no live jobs is adopted: it takes the profile's policy as a whole. A schema of the profile's name that another role has made is
-- not taken over: what is in it would run with our owner's rights.
CREATE OR REPLACE FUNCTION tenure.install_profile(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_name text := p_request ->> 'name';
    v_actor text := p_request ->> 'actor';
    v_is_new boolean := NOT EXISTS (SELECT 1 FROM tenure.profile AS p WHERE p.name = v_name);
    v_queue text;
    v_gate text;
    v_owner text;
    v_queues text[] := '{}';
    v_adopted text[] := '{}';
    v_gates text[] := '{}';
BEGIN
    SELECT r.rolname INTO v_owner
    FROM pg_namespace AS n
    JOIN pg_roles AS r ON r.oid = n.nspowner
    JOIN pg_database AS d ON d.datname = current_database()
    WHERE v_is_new AND n.nspname = v_name AND NOT r.rolsuper AND r.oid <> d.datdba
        AND r.rolname NOT IN (session_user, tenure.login(), 'tenure_owner', 'pg_database_owner');
    IF FOUND THEN
        RAISE EXCEPTION 'Schema % is there already and belongs to role %, which could have put code of its own into it. Profile % was not installed.',
            v_name, v_owner, quote_literal(v_name) USING ERRCODE = 'TN010', HINT = format('Look at what is in it. Then drop it, or give it '
                'to the role that installs: ALTER SCHEMA %I OWNER TO …', v_name);
    END IF;
    PERFORM tenure.write_audit(v_now, v_actor, 'install_profile', v_name, NULL, json_build_object('checksum', p_request ->> 'checksum'));
    INSERT INTO tenure.profile AS p (name, title, policy, words, settings, shows, checksum, actor, installed_at, updated_at)
    VALUES (
        v_name, p_request ->> 'title', p_request -> 'policy', p_request -> 'words', (p_request -> 'settings')::jsonb,
        coalesce(tenure.text_list(p_request -> 'shows'), '{}'), p_request ->> 'checksum', v_actor, v_now, v_now
    )
    ON CONFLICT (name) DO UPDATE
    SET title = excluded.title,
        policy = excluded.policy,
        words = excluded.words,
        settings = excluded.settings || p.settings,
        shows = excluded.shows,
        checksum = excluded.checksum,
        actor = excluded.actor,
        updated_at = excluded.updated_at;
    FOR v_queue IN SELECT q.name FROM json_array_elements_text(p_request -> 'queues') AS q(name) LOOP
        SELECT q.profile INTO v_owner FROM tenure.queue AS q WHERE q.name = v_queue;
        CONTINUE WHEN v_owner = v_name;
        IF v_owner <> 'default' THEN
            RAISE EXCEPTION 'Queue % is there already and belongs to profile %, so profile % was not installed.',
                quote_literal(v_queue), quote_literal(v_owner), quote_literal(v_name)
                USING ERRCODE = 'TN008', HINT = format('Take it from that profile with `tenure queues set %s profile=default` and '
                    'install again, or name another queue in the profile file.', v_queue);
        END IF;
        PERFORM tenure.set_queues(json_build_object('policies', json_build_object(v_queue, p_request -> 'policy'), 'actor', v_actor));
        IF v_owner IS NULL THEN
            v_queues := v_queues || v_queue;
        ELSE
            v_adopted := v_adopted || v_queue;
        END IF;
    END LOOP;
    FOR v_gate IN SELECT v_name || '.' || g.name FROM json_array_elements_text(p_request -> 'closed') AS g(name) LOOP
        CONTINUE WHEN EXISTS (SELECT 1 FROM tenure.gate AS g WHERE g.name = v_gate);
        PERFORM tenure.set_gate(json_build_object('name', v_gate, 'is_open', false, 'actor', v_actor, 'reason', 'installed closed'));
        v_gates := v_gates || v_gate;
    END LOOP;
    PERFORM tenure.tally_up(v_now);
    RETURN json_build_object('is_new', v_is_new, 'queues', array_to_json(v_queues), 'gates', array_to_json(v_gates),
        'adopted', array_to_json(v_adopted));
END
$$;

-- list_profiles: every profile that is installed here, by name.
CREATE OR REPLACE FUNCTION tenure.list_profiles(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(json_build_object(
        'name', p.name, 'title', p.title, 'policy', p.policy, 'words', p.words, 'settings', p.settings, 'shows', p.shows, 'checksum', p.checksum,
        'actor', p.actor, 'installed_at', tenure.to_us(p.installed_at), 'updated_at', tenure.to_us(p.updated_at),
        'queues', (SELECT coalesce(json_agg(q.name ORDER BY q.name), '[]') FROM tenure.queue AS q WHERE q.profile = p.name)
    ) ORDER BY p.name), '[]')
    FROM tenure.profile AS p
$$;

-- index_view: the indexes behind the main view of a profile, on the status that the view shows: by status and age, by status and end, by
-- kind and status. p_status is the expression of the view, p_ended the column that says when a job ended. They are made with the profile:
-- a job of another profile pays nothing for them.
CREATE OR REPLACE FUNCTION tenure.index_view(p_profile text, p_status text, p_ended text DEFAULT 'finished_at') RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    -- As in tenure.shown: the planner uses an index on an expression only where the query has the same one.
    v_stage text := 'CASE WHEN state <> ''queued'' THEN state WHEN failure_class IS NOT NULL AND attempt > 0 THEN ''retry'' '
        'WHEN is_due THEN ''due'' ELSE ''later'' END::text';
    v_status text := replace(replace(p_status, 's.is_cleaned', '(cleaned_at IS NOT NULL)'), 's.stage', '(' || v_stage || ')');
BEGIN
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON tenure.job ((%s), created_at) WHERE profile = %L',
        'job_' || p_profile || '_age_idx', v_status, p_profile);
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON tenure.job ((%s), (%s)) WHERE profile = %L',
        'job_' || p_profile || '_end_idx', v_status, p_ended, p_profile);
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON tenure.job (kind, (%s)) WHERE profile = %L',
        'job_' || p_profile || '_kind_idx', v_status, p_profile);
    -- The planner takes no statistics from a partial index.
    EXECUTE format('CREATE STATISTICS IF NOT EXISTS tenure.%I (mcv) ON profile, (%s) FROM tenure.job',
        'job_' || p_profile || '_status', v_status);
END
$$;

-- index_look: one more index behind the main view of a profile, for a look that its specification has an index for. p_columns are
-- expressions of the view over tenure.shown AS s; so only such a query uses it that has the same ones.
CREATE OR REPLACE FUNCTION tenure.index_look(p_profile text, p_name text, p_columns text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_stage text := 'CASE WHEN state <> ''queued'' THEN state WHEN failure_class IS NOT NULL AND attempt > 0 THEN ''retry'' '
        'WHEN is_due THEN ''due'' ELSE ''later'' END::text';
    v_columns text := replace(replace(p_columns, 's.is_cleaned', '(cleaned_at IS NOT NULL)'), 's.stage', '(' || v_stage || ')');
BEGIN
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON tenure.job (%s) WHERE profile = %L',
        'job_' || p_profile || '_' || p_name || '_idx', regexp_replace(v_columns, '\ms\.', '', 'g'), p_profile);
END
$$;

-- new_id: a UUIDv7 of the database's making, for clients that send none.
CREATE OR REPLACE FUNCTION tenure.new_id(p_now timestamptz) RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT (lpad(to_hex(tenure.to_us(p_now) / 1000), 12, '0') || '7' || substr(r.hex, 14, 3) || substr(r.hex, 17))::uuid
    FROM (SELECT replace(gen_random_uuid()::text, '-', '') AS hex) AS r
$$;

-- put_job: one job into a queue that must belong to the profile, or is unused and passes to it. Answers {"id", "duplicate"}; the
-- id of a duplicate is null where enqueue does not tell it.
-- p_job: {"i", "p", "r", "k", "m", "a", "x"} as enqueue has it; the id may be left out.
CREATE OR REPLACE FUNCTION tenure.put_job(p_profile text, p_queue text, p_kind text, p_job json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_id uuid := coalesce((p_job ->> 'i')::uuid, tenure.new_id(tenure.now()));
    v_answer json;
BEGIN
    IF coalesce(btrim(p_kind), '') = '' THEN
        RAISE EXCEPTION 'A job needs a kind that says which handler it is for; it is empty. Nothing was enqueued.' USING ERRCODE = 'TN007';
    END IF;
    IF (p_job ->> 'm')::bigint NOT BETWEEN 1 AND 2147483647 THEN
        RAISE EXCEPTION 'A job is attempted 1 to 2,147,483,647 times, not % times. Nothing was enqueued.', p_job ->> 'm' USING ERRCODE = 'TN007';
    END IF;
    IF EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.name = p_queue AND q.profile <> p_profile) THEN
        PERFORM tenure.set_queues(json_build_object('only_new', true, 'actor', p_profile, 'policies', (
            SELECT json_build_object(p_queue, p.policy) FROM tenure.profile AS p WHERE p.name = p_profile)));
        PERFORM tenure.refuse_profile(q.name, q.profile, p_profile) FROM tenure.queue AS q WHERE q.name = p_queue AND q.profile <> p_profile;
    END IF;
    v_answer := tenure.enqueue(json_build_object('groups', json_build_array(json_build_object(
        'queue', p_queue, 'kind', p_kind, 'jobs', json_build_array((p_job::jsonb || jsonb_build_object('i', v_id)))))));
    RETURN CASE WHEN v_answer IS NULL THEN json_build_object('id', v_id, 'duplicate', false)
        ELSE json_build_object('id', v_answer #> '{duplicates,0,1}', 'duplicate', true) END;
END
$$;

-- queue_like: a queue with the policy of p_like, and so of its profile, unless there is one of that name. An unused one takes it too.
CREATE OR REPLACE FUNCTION tenure.queue_like(p_name text, p_like text, p_actor text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.name = p_name AND q.profile <> 'default') THEN
        RETURN;
    END IF;
    PERFORM tenure.set_queues(json_build_object('only_new', true, 'actor', p_actor, 'policies', json_build_object(p_name, (
        SELECT to_jsonb(q) - '{name,paused_at,paused_by,created_at,updated_at}'::text[] FROM tenure.queue AS q WHERE q.name = p_like))));
END
$$;

-- grant_of: the token of the grant under which p_owner holds the job, null if it holds none. Locks the job.
-- With p_token that grant alone counts; without it the owner's name does, so owners must be unique per process.
-- It may wait for the lock past the end of the lease: what is done with the token says whether the lease still counted then.
CREATE OR REPLACE FUNCTION tenure.grant_of(p_profile text, p_id uuid, p_owner text, p_token bigint) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT j.token
    FROM tenure.job AS j
    WHERE j.id = p_id
        AND j.profile = p_profile
        AND j.state IN ('leased', 'running')
        AND j.lease_until > tenure.expiry_cutoff(tenure.now())
        AND j.lease_owner = p_owner
        AND j.lease_login = tenure.login()
        AND j.token = coalesce(p_token, j.token)
    FOR UPDATE
$$;

-- settle_one: end a grant. p_outcome as settle_outcomes has it, without id and token. Answers the state the job is in now; null if the
-- lease is lost, which may have happened since grant_of looked, or if p_token is null.
CREATE OR REPLACE FUNCTION tenure.settle_one(p_id uuid, p_token bigint, p_outcome jsonb) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_answer json;
BEGIN
    IF p_token IS NULL THEN
        RETURN NULL;
    END IF;
    v_answer := tenure.settle_outcomes(
        json_build_object('rest', jsonb_build_array(p_outcome || jsonb_build_object('i', p_id, 't', p_token))), tenure.now());
    RETURN CASE WHEN v_answer IS NULL THEN 'succeeded' ELSE v_answer #>> '{0,2}' END;
END
$$;

-- closed_gate: the first of the profile's gates that is closed, or of the global ones of the same names; null if none is.
CREATE OR REPLACE FUNCTION tenure.closed_gate(p_profile text, p_gates text[]) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT g.name
    FROM tenure.gate AS g
    WHERE NOT g.is_open AND (g.name = ANY (p_gates) OR g.name IN (SELECT p_profile || '.' || n.name FROM unnest(p_gates) AS n(name)))
    ORDER BY g.name
    LIMIT 1
$$;

-- hand_over: everything in a profile's schema goes to tenure_owner and away from PUBLIC; then the rights in p_rights are granted:
-- {"EXECUTE ON FUNCTION x": "worker admin", "SELECT ON y": "reader"}. Where roles could not be created, nothing is granted.
-- Runs with the rights of the installing role, and so can do nothing that the role could not.
CREATE OR REPLACE FUNCTION tenure.hand_over(p_schema text, p_rights jsonb) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_object record;
    v_right record;
    v_role text;
BEGIN
    EXECUTE format('REVOKE ALL ON SCHEMA %I FROM PUBLIC', p_schema);
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM PUBLIC', p_schema);
    EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA %I FROM PUBLIC', p_schema);
    BEGIN
        IF EXISTS (SELECT 1 FROM pg_roles AS r WHERE r.rolname = 'tenure_owner') THEN
            -- The schema first: only who may create things in it can be given what is in it.
            EXECUTE format('ALTER SCHEMA %I OWNER TO tenure_owner', p_schema);
            FOR v_object IN
                SELECT format('ALTER %s %s OWNER TO tenure_owner',
                    CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, c.oid::regclass) AS statement
                FROM pg_class AS c
                WHERE c.relnamespace = p_schema::regnamespace AND c.relkind IN ('r', 'v') AND c.relowner <> 'tenure_owner'::regrole
                UNION ALL
                SELECT format('ALTER ROUTINE %s OWNER TO tenure_owner', p.oid::regprocedure)
                FROM pg_proc AS p
                WHERE p.pronamespace = p_schema::regnamespace AND p.proowner <> 'tenure_owner'::regrole
                UNION ALL
                SELECT format('ALTER TYPE %s OWNER TO tenure_owner', t.oid::regtype)
                FROM pg_type AS t
                WHERE t.typnamespace = p_schema::regnamespace AND t.typtype = 'e' AND t.typowner <> 'tenure_owner'::regrole
            LOOP
                EXECUTE v_object.statement;
            END LOOP;
        END IF;
    EXCEPTION WHEN insufficient_privilege THEN
        RAISE WARNING 'The schema % stays with %, because it may not be handed to tenure_owner: %', p_schema, current_user, SQLERRM;
    END;
    FOREACH v_role IN ARRAY ARRAY['tenure_producer', 'tenure_worker', 'tenure_reader', 'tenure_operator', 'tenure_admin'] LOOP
        CONTINUE WHEN NOT EXISTS (SELECT 1 FROM pg_roles AS r WHERE r.rolname = v_role);
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM %I', p_schema, v_role);
        EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA %I FROM %I', p_schema, v_role);
        FOR v_right IN
            SELECT e.key AS what
            FROM jsonb_each_text(p_rights) AS e
            WHERE substr(v_role, 8) = ANY (string_to_array(e.value, ' '))
        LOOP
            EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', p_schema, v_role);
            EXECUTE format('GRANT %s TO %I', regexp_replace(v_right.what, '( ON (?:FUNCTION )?)', '\1' || quote_ident(p_schema) || '.'), v_role);
        END LOOP;
    END LOOP;
END
$$;

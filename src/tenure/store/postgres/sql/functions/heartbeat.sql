-- What a worker says while it holds jobs: heartbeat, start, events, effects.

-- heartbeat: extend the leases of all held jobs, store their progress, refresh the worker's row. One statement for the caller.
-- Takes {"holds": [{"i": id, "t": token, "p": progress, "s": started}], "lease": seconds, "worker": {…}}.
-- Answers {"lost": [id], "cancel": [id], "overdue": [id]}: the lease is lost, a cancel was requested, the deadline of a durable job has passed.
-- Never revives a lost lease, never shortens one, never reaches beyond now + lease.
CREATE OR REPLACE FUNCTION tenure.heartbeat(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_cutoff timestamptz := tenure.expiry_cutoff(v_now);
    v_login text := tenure.login();
    v_holds json := coalesce(p_request -> 'holds', '[]');
    v_lease double precision := (p_request ->> 'lease')::double precision;
    v_kept uuid[] := '{}';
    v_cancel uuid[] := '{}';
    v_started uuid[];
    v_moved uuid[];
    v_durable uuid[];
    v_overdue uuid[] := '{}';
    v_lost json := '[]';
BEGIN
    IF v_lease <= 0 THEN
        RAISE EXCEPTION 'lease_seconds is %; it must be positive.', v_lease USING ERRCODE = 'TN007';
    END IF;
    -- A row that another transaction wrote to while we waited for its lock lies in a new place, which the waiting statement cannot see: a second
    -- look finds it, with the lock already ours. An idle worker holds nothing, and does not get the statement ready.
    FOR v_look IN 1..CASE WHEN json_array_length(v_holds) > 0 THEN 2 ELSE 0 END LOOP
        WITH given AS MATERIALIZED (
            SELECT g.i, g.t, g.p, coalesce(g.s, true) AS s FROM json_to_recordset(v_holds) AS g(i uuid, t bigint, p json, s boolean)
            WHERE NOT g.i = ANY (v_kept)
            ORDER BY g.i
        ), held AS MATERIALIZED (
            SELECT k.at, k.until, k.starts AND g.s AS starts, k.events AND g.p IS NOT NULL AS moves, g.p, g.s
            FROM given AS g
            CROSS JOIN LATERAL (
                SELECT j.ctid AS at, v_now + least(coalesce(v_lease, q.lease_seconds), q.lease_max_seconds) * interval '1 second' AS until,
                    q.events, q.events AND j.state = 'leased' AS starts
                FROM tenure.job AS j
                JOIN tenure.queue AS q ON q.name = j.queue
                WHERE j.id = g.i AND j.token = g.t AND j.lease_until > v_cutoff AND j.lease_login = v_login
                FOR UPDATE OF j
            ) AS k
        ), kept AS (
            UPDATE tenure.job AS j
            SET lease_until = greatest(j.lease_until, h.until),
                state = CASE WHEN h.s THEN 'running' ELSE j.state END,
                started_at = CASE WHEN h.s THEN coalesce(j.started_at, v_now) ELSE j.started_at END,
                progress = coalesce(h.p, j.progress),
                is_beside = false,
                updated_at = v_now
            FROM held AS h
            WHERE j.ctid = h.at
            RETURNING j.id, j.cancel_requested_at, h.starts, h.moves, j.step_token
        )
        SELECT v_kept || array_agg(k.id), v_cancel || array_agg(k.id) FILTER (WHERE k.cancel_requested_at IS NOT NULL),
            v_started || array_agg(k.id) FILTER (WHERE k.starts), v_moved || array_agg(k.id) FILTER (WHERE k.moves),
            v_durable || array_agg(k.id) FILTER (WHERE k.step_token IS NOT NULL)
        INTO v_kept, v_cancel, v_started, v_moved, v_durable
        FROM kept AS k;
        EXIT WHEN cardinality(v_kept) >= json_array_length(v_holds);
    END LOOP;
    IF v_started IS NOT NULL THEN
        PERFORM tenure.tell('started', v_started, v_now);
    END IF;
    IF v_moved IS NOT NULL THEN
        PERFORM tenure.tell('progress', v_moved, v_now);
    END IF;
    IF v_durable IS NOT NULL THEN
        v_overdue := ARRAY(
            SELECT s.job_id
            FROM tenure.step AS s
            WHERE s.job_id = ANY (v_durable) AND s.key = '$deadline' AND s.due_at <= v_now
                AND NOT EXISTS (SELECT 1 FROM tenure.step AS u WHERE u.job_id = s.job_id AND u.key = '$undoing'));
    END IF;
    IF cardinality(v_kept) < json_array_length(v_holds) THEN
        SELECT coalesce(json_agg(g.i), '[]') INTO v_lost FROM json_to_recordset(v_holds) AS g(i uuid) WHERE NOT g.i = ANY (v_kept);
    END IF;
    IF p_request -> 'worker' IS NOT NULL THEN
        PERFORM tenure.refresh_worker(p_request -> 'worker', json_array_length(v_holds) = 0, v_now);
    END IF;
    RETURN json_build_object('lost', v_lost, 'cancel', array_to_json(v_cancel), 'overdue', array_to_json(v_overdue));
END
$$;

-- refresh_worker: the worker's own row, which no other login may write. A closed heartbeat gate, the global one or that of a profile it serves, keeps it from being
-- written, and is an error if there was nothing else to do.
CREATE OR REPLACE FUNCTION tenure.refresh_worker(p_worker json, p_alone boolean, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_id text := tenure.worker_name(p_worker ->> 'id');
    v_gate text;
BEGIN
    IF json_typeof(p_worker -> 'info') NOT IN ('object', 'null') THEN
        RAISE EXCEPTION 'What worker % says of itself is a JSON object, not a JSON %. Nothing was changed.', quote_literal(v_id), json_typeof(p_worker -> 'info')
            USING ERRCODE = 'TN007';
    END IF;
    SELECT min(g.name) INTO v_gate
    FROM tenure.gate AS g
    WHERE NOT g.is_open AND (g.name = 'heartbeat' OR g.name IN (
        SELECT q.profile || '.heartbeat'
        FROM tenure.queue AS q
        WHERE q.name IN (SELECT s.name FROM json_array_elements_text(p_worker -> 'queues') AS s(name))));
    IF v_gate IS NOT NULL THEN
        IF p_alone THEN
            PERFORM tenure.refuse_gate(v_gate, 'heartbeat');
        END IF;
        RETURN;
    END IF;
    INSERT INTO tenure.worker AS w (
        id, hostname, pid, queues, kinds, concurrency, version, executor_kind, status, ticks, current_job_id, info, login, started_at,
        last_seen_at
    )
    SELECT
        v_id, g.hostname, g.pid,
        ARRAY(SELECT json_array_elements_text(g.queues)), ARRAY(SELECT json_array_elements_text(g.kinds)),
        g.concurrency, g.version, g.executor_kind, g.status, 1, g.current_job_id, coalesce(g.info, '{}'), tenure.login(), p_now, p_now
    FROM json_to_record(p_worker) AS g(
        hostname text, pid integer, queues json, kinds json, concurrency integer, version text, executor_kind text,
        status text, current_job_id uuid, info jsonb)
    ON CONFLICT (id) DO UPDATE
    SET queues = excluded.queues,
        kinds = excluded.kinds,
        concurrency = excluded.concurrency,
        version = excluded.version,
        status = excluded.status,
        current_job_id = excluded.current_job_id,
        info = excluded.info,
        ticks = w.ticks + 1,
        last_seen_at = p_now
    WHERE w.login = excluded.login;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'Worker % is registered by another login. Nothing was changed. Use a name that is unique per process.',
            quote_literal(v_id) USING ERRCODE = 'TN010';
    END IF;
END
$$;

-- start: leased → running, for workers that say so themselves. Takes {"holds": [{"i", "t", "p": progress}]}, answers the ids whose lease is lost.
CREATE OR REPLACE FUNCTION tenure.start(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_cutoff timestamptz := tenure.expiry_cutoff(v_now);
    v_hold record;
    v_was text;
    v_lost uuid[] := '{}';
    v_started uuid[];
BEGIN
    FOR v_hold IN SELECT g.i, g.t, g.p FROM json_to_recordset(p_request -> 'holds') AS g(i uuid, t bigint, p json) ORDER BY g.i LOOP
        SELECT j.state INTO v_was FROM tenure.job AS j
        WHERE j.id = v_hold.i AND j.token = v_hold.t AND j.lease_until > v_cutoff AND j.lease_login = tenure.login()
        FOR UPDATE;
        IF NOT FOUND THEN
            v_lost := v_lost || v_hold.i;
            CONTINUE;
        END IF;
        UPDATE tenure.job AS j
        SET state = 'running',
            started_at = coalesce(j.started_at, v_now),
            progress = coalesce(v_hold.p, j.progress),
            is_beside = false,
            updated_at = v_now
        WHERE j.id = v_hold.i;
        IF v_was = 'leased' THEN
            v_started := v_started || v_hold.i;
        END IF;
    END LOOP;
    IF v_started IS NOT NULL THEN
        PERFORM tenure.tell('started', v_started, v_now);
    END IF;
    RETURN array_to_json(v_lost);
END
$$;

-- worker_name: the name, unless it is blank or too long, which is refused: a name is what a lease, an attempt and a dead letter are told by,
-- and a cancel is notified with it. WORKER_ID of tenure.model.ids is the same rule.
CREATE OR REPLACE FUNCTION tenure.worker_name(p_worker text) RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    IF coalesce(p_worker, '') !~ '\S' OR length(p_worker) > 500 THEN
        RAISE EXCEPTION 'A worker needs a name of 1 to 500 characters that is not blank, and unique per process. Nothing was changed.'
            USING ERRCODE = 'TN007';
    END IF;
    RETURN p_worker;
END
$$;

-- append_events: {"job_id", "token", "events": [{"kind", "data", "job_id"}]} → whether they were written.
-- Fenced: the job's row is locked while its token and lease are judged, so a late worker writes nothing.
CREATE OR REPLACE FUNCTION tenure.append_events(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_job_id uuid := tenure.as_uuid(p_request ->> 'job_id');
    v_queue text := tenure.held_queue(v_job_id, (p_request ->> 'token')::bigint, v_now);
BEGIN
    IF v_queue IS NULL THEN
        RETURN to_json(false);
    END IF;
    IF EXISTS (
        SELECT 1 FROM json_to_recordset(p_request -> 'events') AS e(job_id text)
        WHERE e.job_id IS NOT NULL AND tenure.as_uuid(e.job_id) IS DISTINCT FROM v_job_id
    ) THEN
        RAISE EXCEPTION 'An event names another job than %, which is held. Nothing was written. Append events to the job that you hold.', v_job_id
            USING ERRCODE = 'TN010';
    END IF;
    INSERT INTO tenure.event (at, kind, job_id, queue, data)
    SELECT v_now, e.kind, v_job_id, v_queue, coalesce(e.data, '{}')
    FROM json_to_recordset(p_request -> 'events') AS e(kind text, data json);
    RETURN to_json(true);
END
$$;

-- held_queue: the queue of a job that this login holds under this very token; null if the lease is lost. Keeps the row from changing
-- until the transaction ends.
CREATE OR REPLACE FUNCTION tenure.held_queue(p_job_id uuid, p_token bigint, p_now timestamptz) RETURNS text
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT j.queue
    FROM tenure.job AS j
    WHERE j.id = p_job_id
        AND j.token = p_token
        AND j.state IN ('leased', 'running')
        AND j.lease_until > tenure.expiry_cutoff(p_now)
        AND j.lease_login = tenure.login()
    FOR SHARE
$$;

-- record_effect: {"job_id", "token", "effect": {"name", "state", "step", "args", "result", "error", "key", "approval"}} → the row as it stands,
-- null if the lease is lost.
CREATE OR REPLACE FUNCTION tenure.record_effect(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_job_id uuid := tenure.as_uuid(p_request ->> 'job_id');
    v_token bigint := (p_request ->> 'token')::bigint;
BEGIN
    IF tenure.held_queue(v_job_id, v_token, v_now) IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN tenure.show_effect(tenure.put_effect(v_job_id, v_token, p_request -> 'effect', v_now));
END
$$;

-- put_effect: write one row of the ledger for a job whose token was checked. The first record of a place fixes args and key; later
-- ones move the state and add result or error. `intended` where a row stands changes nothing: the answer tells how far an earlier
-- attempt got. Without a key of its own, the place is the key. An approval that it names is used by it.
CREATE OR REPLACE FUNCTION tenure.put_effect(p_job_id uuid, p_token bigint, p_effect json, p_now timestamptz) RETURNS tenure.effect
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_step text := coalesce(p_effect ->> 'step', '');
    v_name text := p_effect ->> 'name';
    v_row tenure.effect;
BEGIN
    IF p_effect ->> 'approval' IS NOT NULL THEN
        PERFORM tenure.use_approval(p_job_id, p_effect ->> 'approval', v_step, v_name, coalesce(p_effect -> 'args', 'null'), p_now);
    END IF;
    INSERT INTO tenure.effect AS f (job_id, step, name, state, token, key, args, result, error, intended_at, updated_at)
    VALUES (
        p_job_id, v_step, v_name, p_effect ->> 'state', p_token,
        coalesce(p_effect ->> 'key', p_job_id || ':' || v_step || ':' || v_name),
        coalesce(p_effect -> 'args', 'null'), p_effect -> 'result', p_effect ->> 'error', p_now, p_now
    )
    ON CONFLICT (job_id, step, name) DO UPDATE
    SET state = excluded.state,
        token = excluded.token,
        result = coalesce(excluded.result, f.result),
        error = coalesce(excluded.error, f.error),
        updated_at = excluded.updated_at
    WHERE excluded.state <> 'intended'
    RETURNING f.* INTO v_row;
    IF NOT FOUND THEN
        SELECT * INTO STRICT v_row FROM tenure.effect AS f WHERE f.job_id = p_job_id AND f.step = v_step AND f.name = v_name;
    END IF;
    RETURN v_row;
END
$$;

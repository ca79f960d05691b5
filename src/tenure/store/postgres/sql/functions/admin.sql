-- What operators and leaders do: queues, gates, pauses, dead letters, named leases, schedules.

-- write_audit: one row of what an operator did. A nameless act is refused.
CREATE OR REPLACE FUNCTION tenure.write_audit(
    p_at timestamptz, p_actor text, p_act text, p_subject text, p_reason text, p_detail json
) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    IF coalesce(p_actor, '') !~ '\S' THEN
        RAISE EXCEPTION 'The actor must say who does this; it is empty, so % was refused and nothing was changed.', p_act
            USING ERRCODE = 'TN007';
    END IF;
    INSERT INTO tenure.audit (at, actor, act, subject, reason, detail)
    VALUES (p_at, p_actor, p_act, p_subject, p_reason, coalesce(p_detail, '{}'));
END
$$;

-- set_queues: {"policies": {name: {column: value, …}}, "actor", "only_new", "reason"} → the queues as they stand now, in the order given.
--
-- Columns that a policy leaves out keep their value. Where the queue is new to its profile they take the profile's value: a queue
-- that belongs to a profile has its rules. Jobs already there keep the rank and max_attempts they were given. A queue with live jobs
-- stays with its profile. only_new leaves existing queues as they are, except unused ones that the policy gives to a profile.
-- A login that may not call this itself, and comes by way of an enqueue, creates no queue beyond the thousandth.
CREATE OR REPLACE FUNCTION tenure.set_queues(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_only_new boolean := coalesce((p_request ->> 'only_new')::boolean, false);
    v_name text;
    v_policy json;
    v_is_new boolean;
    v_adopts boolean;
BEGIN
    -- In the order of their names: two calls that set the same queues cannot wait for each other in a circle.
    FOR v_name, v_policy IN SELECT e.key, e.value FROM json_each(p_request -> 'policies') AS e ORDER BY e.key COLLATE "C" LOOP
        v_adopts := v_only_new AND coalesce(v_policy ->> 'profile', 'default') <> 'default' AND tenure.is_unused(v_name);
        CONTINUE WHEN v_only_new AND NOT v_adopts AND EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.name = v_name);
        INSERT INTO tenure.queue (name, created_at, updated_at) VALUES (v_name, v_now, v_now) ON CONFLICT DO NOTHING;
        v_is_new := FOUND;
        IF v_is_new AND NOT tenure.may('set_queues') AND (SELECT count(*) FROM tenure.queue) > 1000 THEN
            RAISE EXCEPTION 'There are 1,000 queues, so % was not created, and nothing was changed. An admin may create more with `tenure queues set`, '
                'or remove unused ones with `tenure queues rm`.', quote_literal(v_name) USING ERRCODE = 'TN010';
        END IF;
        IF v_is_new OR v_adopts OR NOT v_only_new THEN
            PERFORM tenure.set_policy(v_name, v_policy, v_now);
            PERFORM tenure.write_audit(
                v_now, p_request ->> 'actor', CASE WHEN v_is_new THEN 'create_queue' ELSE 'set_queue' END, v_name,
                p_request ->> 'reason', v_policy
            );
        END IF;
    END LOOP;
    PERFORM tenure.make_embedding_queue(p_request ->> 'actor')
    FROM json_each(p_request -> 'policies') AS e
    WHERE coalesce(e.value ->> 'agent_events', 'none') <> 'none'
    LIMIT 1;
    RETURN (
        SELECT coalesce(json_agg(tenure.show_queue(q) ORDER BY e.nth), '[]')
        FROM json_object_keys(p_request -> 'policies') WITH ORDINALITY AS e(name, nth)
        JOIN tenure.queue AS q ON q.name = e.name
    );
END
$$;

-- default_policy: the defaults of the queue's columns.
CREATE OR REPLACE FUNCTION tenure.default_policy() RETURNS json
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT '{
        "profile": "default", "priority_order": "high", "priority_default": 0, "aging_seconds": null, "start_on_claim": true,
        "max_attempts": 3, "backoff_shape": "exponential", "backoff_base_seconds": 5, "backoff_power": 2, "backoff_factor": 2,
        "backoff_cap_seconds": 3600, "backoff_jitter": 0.1, "lease_seconds": 60, "lease_max_seconds": 86400, "key_scope": "active",
        "key_space": "kind", "key_required": false, "key_window_seconds": 86400, "key_conflict": "error", "revive": "revive",
        "on_unknown_kind": "leave", "forbidden_keys": null, "concurrency": null, "concurrency_per_key": null,
        "retain_seconds": 604800, "events": false, "agent_events": "none"
    }'::json
$$;

-- is_unused: whether a queue is as a worker's start makes it: in profile `default` with the default policy, and without any job, live
-- or ended. Such a queue may pass to the profile that first uses it. False if there is no such queue.
CREATE OR REPLACE FUNCTION tenure.is_unused(p_name text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce((
        SELECT to_jsonb(q) - '{name,paused_at,paused_by,created_at,updated_at}'::text[] = tenure.default_policy()::jsonb
            AND NOT EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.queue = q.name)
        FROM tenure.queue AS q
        WHERE q.name = p_name AND q.name <> 'default'
    ), false)
$$;

-- set_policy: write one queue's policy over what stands there, or over the rules of its profile where the queue is new to it.
CREATE OR REPLACE FUNCTION tenure.set_policy(p_name text, p_policy json, p_now timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_old tenure.queue;
    v_new tenure.queue;
    v_rules json;
    v_unknown text;
BEGIN
    SELECT * INTO STRICT v_old FROM tenure.queue AS q WHERE q.name = p_name FOR UPDATE;
    SELECT given.name INTO v_unknown
    FROM json_object_keys(p_policy) AS given(name)
    WHERE given.name IN ('name', 'paused_at', 'paused_by', 'created_at', 'updated_at')
        OR given.name NOT IN (SELECT known.name FROM json_object_keys(row_to_json(v_old)) AS known(name))
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'Queue %: a policy has no setting %. Nothing was changed.', quote_literal(p_name), quote_literal(v_unknown)
            USING ERRCODE = 'TN007';
    END IF;
    v_new := json_populate_record(v_old, p_policy);
    IF v_new.profile IS DISTINCT FROM v_old.profile THEN
        SELECT p.policy INTO v_rules FROM tenure.profile AS p WHERE p.name = v_new.profile;
        IF FOUND OR v_new.profile = 'default' THEN
            v_new := json_populate_record(json_populate_record(v_old, coalesce(v_rules, tenure.default_policy())), p_policy);
        ELSIF EXISTS (
            SELECT 1
            FROM json_object_keys(row_to_json(v_old)) AS known(name)
            WHERE known.name NOT IN ('name', 'paused_at', 'paused_by', 'created_at', 'updated_at')
                AND known.name NOT IN (SELECT given.name FROM json_object_keys(p_policy) AS given(name))
        ) THEN
            RAISE EXCEPTION 'Profile % is not installed in this database, so its rules for queue % are not known. Nothing was changed.',
                quote_literal(v_new.profile), quote_literal(p_name)
                USING ERRCODE = 'TN007', HINT = 'Install it with `tenure profile install`, or state the whole policy.';
        END IF;
    END IF;
    IF v_new.profile IS DISTINCT FROM v_old.profile AND EXISTS (
        SELECT 1 FROM tenure.job AS j WHERE j.queue = p_name AND j.state IN ('queued', 'leased', 'running', 'waiting')
    ) THEN
        RAISE EXCEPTION 'Queue % belongs to profile % as long as it has live jobs, so it cannot go to profile %. Nothing was changed.',
            quote_literal(p_name), quote_literal(v_old.profile), quote_literal(v_new.profile)
            USING ERRCODE = 'TN008', HINT = 'Let its jobs end or cancel them first, or use another queue.';
    END IF;
    UPDATE tenure.queue AS q
    SET profile = v_new.profile,
        priority_order = v_new.priority_order,
        priority_default = v_new.priority_default,
        aging_seconds = v_new.aging_seconds,
        start_on_claim = v_new.start_on_claim,
        max_attempts = v_new.max_attempts,
        backoff_shape = v_new.backoff_shape,
        backoff_base_seconds = v_new.backoff_base_seconds,
        backoff_power = v_new.backoff_power,
        backoff_factor = v_new.backoff_factor,
        backoff_cap_seconds = v_new.backoff_cap_seconds,
        backoff_jitter = v_new.backoff_jitter,
        lease_seconds = v_new.lease_seconds,
        lease_max_seconds = v_new.lease_max_seconds,
        key_scope = v_new.key_scope,
        key_space = v_new.key_space,
        key_required = v_new.key_required,
        key_window_seconds = v_new.key_window_seconds,
        key_conflict = v_new.key_conflict,
        revive = v_new.revive,
        on_unknown_kind = v_new.on_unknown_kind,
        forbidden_keys = v_new.forbidden_keys,
        concurrency = v_new.concurrency,
        concurrency_per_key = v_new.concurrency_per_key,
        retain_seconds = v_new.retain_seconds,
        events = v_new.events,
        agent_events = v_new.agent_events,
        updated_at = p_now
    WHERE q.name = p_name;
END
$$;

-- pause_queues: {"names", "paused", "actor", "reason"} → the names that changed. A resumed queue wakes the workers that wait for it.
CREATE OR REPLACE FUNCTION tenure.pause_queues(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_names text[] := tenure.text_list(p_request -> 'names');
    v_paused boolean := (p_request ->> 'paused')::boolean;
    v_changed text[] := '{}';
    v_name text;
    v_queue tenure.queue;
BEGIN
    FOR v_name IN SELECT DISTINCT n.name COLLATE "C" FROM unnest(v_names) AS n(name) ORDER BY 1 LOOP
        SELECT * INTO v_queue FROM tenure.queue AS q WHERE q.name = v_name FOR UPDATE;
        IF NOT FOUND THEN
            PERFORM tenure.refuse_unknown_queue(v_name);
        END IF;
        CONTINUE WHEN (v_queue.paused_at IS NOT NULL) = v_paused;
        UPDATE tenure.queue AS q
        SET paused_at = CASE WHEN v_paused THEN v_now END,
            paused_by = CASE WHEN v_paused THEN p_request ->> 'actor' END,
            updated_at = v_now
        WHERE q.name = v_name;
        PERFORM tenure.write_audit(
            v_now, p_request ->> 'actor', CASE WHEN v_paused THEN 'pause_queue' ELSE 'resume_queue' END,
            v_name, p_request ->> 'reason', NULL
        );
        IF NOT v_paused THEN
            PERFORM tenure.notify(ARRAY[v_queue.name]);
        END IF;
        v_changed := v_changed || v_name;
    END LOOP;
    RETURN array_to_json(v_changed);
END
$$;

-- remove_queues: {"names", "actor", "reason"} → the names that were there. A queue that has any job, live or ended, stays.
--
-- An enqueue that commits at the same moment may leave a job in a queue that has no row; setting the queue again brings it back.
CREATE OR REPLACE FUNCTION tenure.remove_queues(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_removed text[] := '{}';
    v_name text;
BEGIN
    FOR v_name IN
        SELECT DISTINCT n.name COLLATE "C" FROM unnest(tenure.text_list(p_request -> 'names')) AS n(name) ORDER BY 1
    LOOP
        PERFORM 1 FROM tenure.queue AS q WHERE q.name = v_name FOR UPDATE;
        IF v_name = 'default' OR EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.queue = v_name) THEN
            RAISE EXCEPTION 'Queue % cannot be removed: %. `tenure prune --delete-after` removes ended jobs. Nothing was changed.',
                quote_literal(v_name),
                CASE WHEN v_name = 'default' THEN 'every database has it' ELSE 'it still has jobs, live or ended' END
            USING ERRCODE = 'TN008';
        END IF;
        DELETE FROM tenure.queue AS q WHERE q.name = v_name;
        IF FOUND THEN
            PERFORM tenure.write_audit(v_now, p_request ->> 'actor', 'remove_queue', v_name, p_request ->> 'reason', NULL);
            v_removed := v_removed || v_name;
        END IF;
    END LOOP;
    RETURN array_to_json(v_removed);
END
$$;

-- set_gate: {"name", "is_open", "actor", "reason"} → the gate. A gate that opens wakes the workers that wait for work.
CREATE OR REPLACE FUNCTION tenure.set_gate(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_name text := p_request ->> 'name';
    v_is_open boolean := (p_request ->> 'is_open')::boolean;
BEGIN
    IF v_name IS NULL OR v_name !~ '^(([A-Za-z0-9_-]+\.)?(master|worker|notify|heartbeat)|(queue|kind|worker):(?=.*\S).{1,200})$' THEN
        RAISE EXCEPTION 'There can be no gate %. Gates are master, worker, notify, heartbeat, PROFILE.GATE, queue:NAME, kind:NAME and worker:ID.',
            coalesce(quote_literal(v_name), 'without a name') USING ERRCODE = 'TN007';
    END IF;
    PERFORM tenure.write_audit(
        v_now, p_request ->> 'actor', CASE WHEN v_is_open THEN 'open_gate' ELSE 'close_gate' END, v_name, p_request ->> 'reason', NULL
    );
    INSERT INTO tenure.gate AS g (name, is_open, actor, updated_at)
    VALUES (v_name, v_is_open, p_request ->> 'actor', v_now)
    ON CONFLICT (name) DO UPDATE
    SET is_open = excluded.is_open,
        actor = excluded.actor,
        updated_at = excluded.updated_at;
    IF v_is_open THEN
        PERFORM tenure.notify(ARRAY(SELECT q.name FROM tenure.queue AS q));
    END IF;
    RETURN json_build_object(
        'name', v_name, 'is_open', v_is_open, 'updated_at', tenure.to_us(v_now), 'actor', p_request ->> 'actor'
    );
END
$$;

-- triage_dead_letters: {"ids", "triage", "actor", "note", "owner"} → the ids that were changed. The note belongs to the decision: without
-- one the old one goes. The owner stays unless another is named.
CREATE OR REPLACE FUNCTION tenure.triage_dead_letters(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_triage text := p_request ->> 'triage';
    v_letter record;
    v_changed uuid[] := '{}';
BEGIN
    -- The table's CHECK refuses it too, but tells the server's log the whole row, with its payload.
    IF coalesce(v_triage, '') NOT IN ('pending', 'acknowledged', 'manual_replay', 'escalated', 'closed') THEN
        RAISE EXCEPTION 'A dead letter is triaged as pending, acknowledged, manual_replay, escalated or closed, not %. Nothing was changed.',
            quote_nullable(v_triage) USING ERRCODE = 'TN007';
    END IF;
    FOR v_letter IN
        SELECT d.id, d.job_id, d.triage
        FROM tenure.dead_letter AS d
        WHERE d.id = ANY (ARRAY(SELECT tenure.as_uuid(e.value) FROM json_array_elements_text(p_request -> 'ids') AS e))
        ORDER BY d.id
        FOR UPDATE
    LOOP
        PERFORM tenure.write_audit(
            v_now, p_request ->> 'actor', 'triage', v_letter.id::text, p_request ->> 'note',
            json_strip_nulls(json_build_object(
                'job_id', v_letter.job_id, 'from', v_letter.triage, 'to', v_triage, 'owner', p_request ->> 'owner'))
        );
        UPDATE tenure.dead_letter AS d
        SET triage = v_triage,
            triage_note = p_request ->> 'note',
            triaged_at = v_now,
            triaged_by = p_request ->> 'actor',
            owner = coalesce(p_request ->> 'owner', d.owner)
        WHERE d.id = v_letter.id;
        v_changed := v_changed || v_letter.id;
    END LOOP;
    RETURN array_to_json(v_changed);
END
$$;

-- acquire_lease: take a named lease if it is free or run out, or extend one's own. Answers who owns it now.
-- Invariant: one row decides. The term rises with every change of owner and never otherwise, so no term has two owners.
CREATE OR REPLACE FUNCTION tenure.acquire_lease(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_owner text := p_request ->> 'owner';
    v_seconds double precision := (p_request ->> 'seconds')::double precision;
    v_lease tenure.lease;
BEGIN
    IF v_seconds IS NULL OR NOT v_seconds > 0 OR v_seconds > 86400 * 366 THEN
        RAISE EXCEPTION 'A named lease lasts more than 0 seconds and at most a year, not % seconds.', v_seconds USING ERRCODE = 'TN007';
    END IF;
    IF coalesce(v_owner, '') !~ '\S' OR coalesce(p_request ->> 'name', '') !~ '\S' THEN
        RAISE EXCEPTION 'A named lease needs a name and an owner.' USING ERRCODE = 'TN007';
    END IF;
    -- Most who ask find it taken. They look and go: no lock, nothing written, nothing synced.
    SELECT * INTO v_lease FROM tenure.lease AS l WHERE l.name = p_request ->> 'name' AND l.owner <> v_owner AND l.until > v_now;
    IF NOT FOUND THEN
        INSERT INTO tenure.lease AS l (name, owner, term, acquired_at, until)
        VALUES (p_request ->> 'name', v_owner, 1, v_now, v_now + v_seconds * interval '1 second')
        ON CONFLICT (name) DO UPDATE
        SET owner = excluded.owner,
            term = l.term + CASE WHEN l.owner = excluded.owner THEN 0 ELSE 1 END,
            acquired_at = CASE WHEN l.owner = excluded.owner THEN l.acquired_at ELSE excluded.acquired_at END,
            until = excluded.until
        WHERE l.owner = excluded.owner OR l.until <= v_now;
        SELECT * INTO STRICT v_lease FROM tenure.lease AS l WHERE l.name = p_request ->> 'name';
    END IF;
    RETURN json_build_object(
        'name', v_lease.name, 'owner', v_lease.owner, 'term', v_lease.term, 'until', tenure.to_us(v_lease.until),
        'acquired', v_lease.owner = v_owner
    );
END
$$;

-- release_lease: give a named lease back, if it is still the asker's in that term. The row stays, because the term must go on rising.
CREATE OR REPLACE FUNCTION tenure.release_lease(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    UPDATE tenure.lease AS l
    SET until = least(l.until, tenure.now())
    WHERE l.name = p_request ->> 'name'
        AND l.owner = p_request ->> 'owner'
        AND l.term = (p_request ->> 'term')::bigint;
    RETURN to_json(FOUND);
END
$$;

-- Schedules: the store reads no cron; it decides that each tick happens once.

CREATE OR REPLACE FUNCTION tenure.show_schedule(p_row tenure.schedule) RETURNS json
LANGUAGE sql STABLE
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT json_build_array(p_row.name, p_row.spec::text, tenure.to_us(p_row.last_tick), tenure.to_us(p_row.paused_at), p_row.paused_by,
        tenure.to_us(p_row.created_at), tenure.to_us(p_row.updated_at))
$$;

-- list_schedules: {"names": […]} or {} → the rows by name.
CREATE OR REPLACE FUNCTION tenure.list_schedules(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(tenure.show_schedule(s) ORDER BY s.name COLLATE "C"), '[]')
    FROM tenure.schedule AS s
    WHERE p_request -> 'names' IS NULL OR s.name IN (SELECT n.name FROM json_array_elements_text(p_request -> 'names') AS n(name))
$$;

-- set_schedules: {"specs": {name: spec}, "actor", "reason"} → their rows. A known one keeps its last tick and its pause.
CREATE OR REPLACE FUNCTION tenure.set_schedules(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_name text;
    v_spec json;
BEGIN
    FOR v_name, v_spec IN SELECT e.key, e.value FROM json_each(p_request -> 'specs') AS e ORDER BY e.key COLLATE "C" LOOP
        INSERT INTO tenure.schedule AS s (name, spec, last_tick, created_at, updated_at)
        VALUES (v_name, v_spec, v_now, v_now, v_now)
        ON CONFLICT (name) DO UPDATE SET spec = excluded.spec, updated_at = v_now WHERE s.spec::text <> excluded.spec::text;
        IF FOUND THEN
            PERFORM tenure.write_audit(v_now, p_request ->> 'actor', 'set_schedule', v_name, p_request ->> 'reason', v_spec);
        END IF;
    END LOOP;
    RETURN tenure.list_schedules(json_build_object('names', (SELECT coalesce(json_agg(k.name), '[]')
        FROM json_object_keys(p_request -> 'specs') AS k(name))));
END
$$;

-- tick_schedule: {"name", "after", "tick", "jobs": an enqueue request} → whether this caller was the one.
-- The row decides, under its lock. A key that is taken is no error here: that job is left out, and no other.
CREATE OR REPLACE FUNCTION tenure.tick_schedule(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_group record;
BEGIN
    UPDATE tenure.schedule AS s
    SET last_tick = tenure.from_us((p_request ->> 'tick')::bigint),
        updated_at = tenure.now()
    WHERE s.name = p_request ->> 'name'
        AND s.last_tick = tenure.from_us((p_request ->> 'after')::bigint)
        AND s.paused_at IS NULL;
    IF NOT FOUND THEN
        RETURN to_json(false);
    END IF;
    FOR v_group IN
        SELECT json_build_object('queue', g.queue, 'kind', g.kind, 'jobs', json_build_array(j.value)) AS one
        FROM json_to_recordset(p_request -> 'jobs' -> 'groups') AS g(queue text, kind text, jobs json)
        CROSS JOIN LATERAL json_array_elements(g.jobs) AS j
    LOOP
        BEGIN
            PERFORM tenure.enqueue(json_build_object('groups', json_build_array(v_group.one)));
        EXCEPTION WHEN SQLSTATE 'TN004' THEN
            NULL;
        END;
    END LOOP;
    RETURN to_json(true);
END
$$;

-- pause_schedules: {"names", "paused", "actor", "reason"} → the names that changed. Resuming starts from now.
CREATE OR REPLACE FUNCTION tenure.pause_schedules(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_paused boolean := (p_request ->> 'paused')::boolean;
    v_name text;
    v_changed text[] := '{}';
BEGIN
    FOR v_name IN SELECT n.name FROM json_array_elements_text(p_request -> 'names') AS n(name) ORDER BY n.name COLLATE "C" LOOP
        UPDATE tenure.schedule AS s
        SET paused_at = CASE WHEN v_paused THEN v_now END,
            paused_by = CASE WHEN v_paused THEN p_request ->> 'actor' END,
            last_tick = CASE WHEN v_paused THEN s.last_tick ELSE v_now END,
            updated_at = v_now
        WHERE s.name = v_name AND (s.paused_at IS NULL) = v_paused;
        IF FOUND THEN
            v_changed := v_changed || v_name;
            PERFORM tenure.write_audit(v_now, p_request ->> 'actor', CASE WHEN v_paused THEN 'pause_schedule' ELSE 'resume_schedule' END,
                v_name, p_request ->> 'reason', NULL);
        END IF;
    END LOOP;
    RETURN array_to_json(v_changed);
END
$$;

-- remove_schedules: {"names", "actor"} → the names that were there. Jobs they made stay.
CREATE OR REPLACE FUNCTION tenure.remove_schedules(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_name text;
    v_gone text[] := '{}';
BEGIN
    FOR v_name IN SELECT n.name FROM json_array_elements_text(p_request -> 'names') AS n(name) ORDER BY n.name COLLATE "C" LOOP
        DELETE FROM tenure.schedule AS s WHERE s.name = v_name;
        IF FOUND THEN
            v_gone := v_gone || v_name;
            PERFORM tenure.write_audit(tenure.now(), p_request ->> 'actor', 'remove_schedule', v_name, NULL, NULL);
        END IF;
    END LOOP;
    RETURN array_to_json(v_gone);
END
$$;

-- resolve_effect: {"job_id", "step", "name", "outcome", "result", "actor", "note"} → the row. What a person found out about an effect
-- whose outcome is not known; the job that waits for it is woken. An effect that is confirmed stays so, and while a worker holds the
-- job it decides itself: the job's row is locked meanwhile, so no claim comes in between.
CREATE OR REPLACE FUNCTION tenure.resolve_effect(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_job_id uuid := tenure.as_uuid(p_request ->> 'job_id');
    v_step text := coalesce(p_request ->> 'step', '');
    v_name text := p_request ->> 'name';
    v_outcome text := p_request ->> 'outcome';
    v_state text := CASE v_outcome WHEN 'confirmed' THEN 'confirmed' WHEN 'retry' THEN 'intended' WHEN 'failed' THEN 'failed' END;
    v_row tenure.effect;
    v_job text;
BEGIN
    IF v_state IS NULL THEN
        RAISE EXCEPTION 'outcome: % is none of confirmed, retry, failed. Nothing was changed.', v_outcome USING ERRCODE = 'TN007';
    END IF;
    SELECT j.state INTO v_job FROM tenure.job AS j WHERE j.id = v_job_id FOR UPDATE;
    SELECT * INTO v_row FROM tenure.effect AS f WHERE f.job_id = v_job_id AND f.step = v_step AND f.name = v_name FOR UPDATE;
    IF v_job IS NULL OR v_row.name IS NULL THEN
        RAISE EXCEPTION 'Job % has no effect % to resolve. `tenure jobs show` lists them.', v_job_id, v_name USING ERRCODE = 'TN009';
    ELSIF v_row.state = 'confirmed' AND v_state <> 'confirmed' THEN
        RAISE EXCEPTION 'Effect % of job % is confirmed, so it stays so.', v_name, v_job_id USING ERRCODE = 'TN008';
    ELSIF v_job IN ('leased', 'running') THEN
        RAISE EXCEPTION 'Job % is held by a worker, which decides about % itself.', v_job_id, v_name USING ERRCODE = 'TN008';
    END IF;
    IF v_row.state <> 'confirmed' THEN
        UPDATE tenure.effect AS f
        SET state = v_state,
            result = CASE v_state WHEN 'failed' THEN json_build_object('given_up_by', p_request ->> 'actor') ELSE p_request -> 'result' END,
            error = p_request ->> 'note',
            updated_at = v_now
        WHERE f.job_id = v_job_id AND f.step = v_step AND f.name = v_name
        RETURNING f.* INTO v_row;
        PERFORM tenure.write_audit(
            v_now, p_request ->> 'actor', 'resolve_effect', v_job_id::text, p_request ->> 'note',
            json_build_object('step', v_step, 'name', v_name, 'outcome', v_outcome)
        );
    END IF;
    PERFORM tenure.wake(json_build_object('waiting_for', concat_ws(':', 'effect', v_job_id, nullif(v_step, ''), v_name)));
    RETURN tenure.show_effect(v_row);
END
$$;

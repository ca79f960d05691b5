-- set_queues: {"policies": {name: {column: value, …}}, "actor", "only_new"} → the queues as they stand now, in the order given.
--
-- Columns that a policy leaves out keep their value, or get the default in a new queue. Jobs already there keep the rank and
-- max_attempts they were given. A queue with live jobs stays with its profile.
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
BEGIN
    -- In the order of their names: two calls that set the same queues cannot wait for each other in a circle.
    FOR v_name, v_policy IN SELECT e.key, e.value FROM json_each(p_request -> 'policies') AS e ORDER BY e.key COLLATE "C" LOOP
        CONTINUE WHEN v_only_new AND EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.name = v_name);
        INSERT INTO tenure.queue (name, created_at, updated_at) VALUES (v_name, v_now, v_now) ON CONFLICT DO NOTHING;
        v_is_new := FOUND;
        IF v_is_new OR NOT v_only_new THEN
            PERFORM tenure.set_policy(v_name, v_policy, v_now);
            PERFORM tenure.write_audit(
                v_now, p_request ->> 'actor', CASE WHEN v_is_new THEN 'create_queue' ELSE 'set_queue' END, v_name, NULL, v_policy
            );
        END IF;
    END LOOP;
    RETURN (
        SELECT coalesce(json_agg(tenure.show_queue(q) ORDER BY e.nth), '[]')
        FROM json_object_keys(p_request -> 'policies') WITH ORDINALITY AS e(name, nth)
        JOIN tenure.queue AS q ON q.name = e.name
    );
END
$$;

-- set_policy: write one queue's policy over what stands there.
CREATE OR REPLACE FUNCTION tenure.set_policy(p_name text, p_policy json, p_now timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_old tenure.queue;
    v_new tenure.queue;
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
        updated_at = p_now
    WHERE q.name = p_name;
END
$$;

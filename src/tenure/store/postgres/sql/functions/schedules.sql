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

-- set_schedules: {"specs": {name: spec}, "actor"} → their rows. A known one keeps its last tick and its pause.
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
            PERFORM tenure.write_audit(v_now, p_request ->> 'actor', 'set_schedule', v_name, NULL, v_spec);
        END IF;
    END LOOP;
    RETURN tenure.list_schedules(json_build_object('names', (SELECT coalesce(json_agg(k.name), '[]')
        FROM json_object_keys(p_request -> 'specs') AS k(name))));
END
$$;

-- tick_schedule: {"name", "after", "tick", "jobs": an enqueue request} → whether this caller was the one.
-- The row decides, under its lock. A key that is taken is no error here: that job is left out.
CREATE OR REPLACE FUNCTION tenure.tick_schedule(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
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
    BEGIN
        IF p_request -> 'jobs' IS NOT NULL THEN
            PERFORM tenure.enqueue(p_request -> 'jobs');
        END IF;
    EXCEPTION WHEN SQLSTATE 'TN004' THEN
        NULL;
    END;
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

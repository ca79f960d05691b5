-- pause_queues: {"names", "paused", "actor", "reason"} → the names that changed. A resumed queue wakes whoever waits for it.
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
            PERFORM tenure.notify(v_queue, NULL);
        END IF;
        v_changed := v_changed || v_name;
    END LOOP;
    RETURN array_to_json(v_changed);
END
$$;

-- set_gate: {"name", "is_open", "actor", "reason"} → the gate. A gate that opens wakes whoever waits for work.
CREATE OR REPLACE FUNCTION tenure.set_gate(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_name text := p_request ->> 'name';
    v_is_open boolean := (p_request ->> 'is_open')::boolean;
BEGIN
    IF v_name IS NULL OR v_name !~ '^(([A-Za-z0-9_-]+\.)?(master|worker|notify|heartbeat)|queue:.{1,200})$' THEN
        RAISE EXCEPTION 'There can be no gate %. Gates are master, worker, notify, heartbeat, PROFILE.GATE and queue:NAME.',
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
        PERFORM tenure.notify(q, NULL) FROM tenure.queue AS q;
    END IF;
    RETURN json_build_object(
        'name', v_name, 'is_open', v_is_open, 'updated_at', tenure.to_us(v_now), 'actor', p_request ->> 'actor'
    );
END
$$;

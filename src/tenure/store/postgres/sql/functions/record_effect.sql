-- record_effect: {"job_id", "token", "effect": {"name", "state", "step", "args", "result", "error", "key"}} → the row as it stands,
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
-- attempt got. Without a key of its own, the place is the key.
CREATE OR REPLACE FUNCTION tenure.put_effect(p_job_id uuid, p_token bigint, p_effect json, p_now timestamptz) RETURNS tenure.effect
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_step text := coalesce(p_effect ->> 'step', '');
    v_name text := p_effect ->> 'name';
    v_row tenure.effect;
BEGIN
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

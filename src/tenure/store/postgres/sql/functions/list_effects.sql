-- list_effects: the effects of a job, or all in the given states, by job and place. `after` is [job_id, step, name] of the
-- last one seen; one more row than `limit` asks for tells that the list goes on.
CREATE OR REPLACE FUNCTION tenure.list_effects(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_states text[] := tenure.text_list(p_request -> 'states');
    v_wanted text := 'true';
    v_answer json;
BEGIN
    IF p_request ->> 'job_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND f.job_id = $1';
    END IF;
    IF v_states IS NOT NULL THEN
        v_wanted := v_wanted || ' AND f.state = ANY ($2)';
    END IF;
    IF p_request ->> 'after' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND (f.job_id, f.step, f.name) > ($3, $4, $5)';
    END IF;
    EXECUTE 'SELECT json_agg(tenure.show_effect(f) ORDER BY f.job_id, f.step, f.name) FROM ('
        'SELECT f.* FROM tenure.effect AS f WHERE ' || v_wanted || ' ORDER BY f.job_id, f.step, f.name LIMIT $6) AS f'
    INTO v_answer
    USING tenure.as_uuid(p_request ->> 'job_id'), v_states, tenure.as_uuid(p_request -> 'after' ->> 0),
        p_request -> 'after' ->> 1, p_request -> 'after' ->> 2, v_limit + 1;
    RETURN coalesce(v_answer, '[]');
END
$$;

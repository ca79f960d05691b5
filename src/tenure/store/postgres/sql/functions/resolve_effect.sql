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

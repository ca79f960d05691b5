-- list_jobs: the jobs that match, newest first by id. One more row than `limit` asks for tells that the list goes on.
--
-- The condition is put together from the fragments below, so that each question is planned for what it asks; every
-- value travels as a parameter. `retry_waiting` and `cleaned` are states that are shown, not stored.
CREATE OR REPLACE FUNCTION tenure.list_jobs(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_states text[] := tenure.text_list(p_request -> 'states');
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_kinds text[] := tenure.text_list(p_request -> 'kinds');
    v_wanted text := 'true';
    v_answer json;
BEGIN
    IF v_states && ARRAY['retry_waiting', 'cleaned'] THEN
        v_wanted := v_wanted || $w$ AND (
            j.state = ANY ($1)
            OR ('retry_waiting' = ANY ($1) AND j.state = 'queued' AND j.attempt > 0 AND j.failure_class IS NOT NULL)
            OR ('cleaned' = ANY ($1) AND j.cleaned_at IS NOT NULL)
        )$w$;
    ELSIF v_states IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.state = ANY ($1)';
    END IF;
    IF v_queues IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.queue = ANY ($2)';
    END IF;
    IF v_kinds IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.kind = ANY ($3)';
    END IF;
    IF p_request ->> 'key' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.idempotency_key = $4';
    END IF;
    IF p_request ->> 'workflow_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.workflow_id = $5';
    END IF;
    IF p_request ->> 'parent_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.parent_id = $6';
    END IF;
    IF p_request ->> 'profile' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.profile = $7';
    END IF;
    IF p_request ->> 'worker' IS NOT NULL THEN
        v_wanted := v_wanted || $w$ AND j.lease_owner = $8 AND j.state IN ('leased', 'running')$w$;
    END IF;
    IF p_request ->> 'after' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.id < $9';
    END IF;
    EXECUTE 'SELECT json_agg(tenure.show_job(j) ORDER BY j.id DESC) FROM ('
        'SELECT j.* FROM tenure.job AS j WHERE ' || v_wanted || ' ORDER BY j.id DESC LIMIT $10) AS j'
    INTO v_answer
    USING v_states, v_queues, v_kinds, p_request ->> 'key',
        tenure.as_uuid(p_request ->> 'workflow_id'), tenure.as_uuid(p_request ->> 'parent_id'),
        p_request ->> 'profile', p_request ->> 'worker', tenure.as_uuid(p_request ->> 'after'), v_limit + 1;
    RETURN coalesce(v_answer, '[]');
END
$$;

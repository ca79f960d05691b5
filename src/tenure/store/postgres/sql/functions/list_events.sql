-- list_events: events above `after`, in order.
CREATE OR REPLACE FUNCTION tenure.list_events(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_kinds text[] := tenure.text_list(p_request -> 'kinds');
    v_wanted text := 'e.seq > $1';
    v_answer json;
BEGIN
    IF p_request ->> 'job_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND e.job_id = $2';
    END IF;
    IF v_queues IS NOT NULL THEN
        v_wanted := v_wanted || ' AND e.queue = ANY ($3)';
    END IF;
    IF v_kinds IS NOT NULL THEN
        v_wanted := v_wanted || ' AND e.kind = ANY ($4)';
    END IF;
    EXECUTE 'SELECT json_agg(row_to_json(shown) ORDER BY shown.seq) FROM ('
        'SELECT e.seq, tenure.to_us(e.at) AS at, e.kind, e.job_id, e.queue, e.data FROM tenure.event AS e WHERE '
        || v_wanted || ' ORDER BY e.seq LIMIT $5) AS shown'
    INTO v_answer
    USING coalesce((p_request ->> 'after')::bigint, 0), tenure.as_uuid(p_request ->> 'job_id'), v_queues, v_kinds, v_limit;
    RETURN coalesce(v_answer, '[]');
END
$$;

-- list_dead_letters: those that match, newest first. `after` is [moved_at, id] of the last one seen;
-- one more row than `limit` asks for tells that the list goes on.
CREATE OR REPLACE FUNCTION tenure.list_dead_letters(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_triage text[] := tenure.text_list(p_request -> 'triage');
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_kinds text[] := tenure.text_list(p_request -> 'kinds');
    v_ids uuid[] := (
        SELECT array_agg(coalesce(tenure.as_uuid(t.id), '00000000-0000-0000-0000-000000000000'))
        FROM unnest(tenure.text_list(p_request -> 'ids')) AS t(id)
    );
    v_wanted text := 'true';
    v_answer json;
BEGIN
    IF v_triage IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.triage = ANY ($1)';
    END IF;
    IF v_queues IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.queue = ANY ($2)';
    END IF;
    IF v_kinds IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.kind = ANY ($3)';
    END IF;
    IF v_ids IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.id = ANY ($4)';
    END IF;
    IF p_request ->> 'fingerprint' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.fingerprint = $5';
    END IF;
    IF p_request ->> 'job_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.job_id = $6';
    END IF;
    IF p_request ->> 'after' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND (d.moved_at, d.id) < ($7, $8)';
    END IF;
    EXECUTE 'SELECT json_agg(tenure.show_dead_letter(d) ORDER BY d.moved_at DESC, d.id DESC) FROM ('
        'SELECT d.* FROM tenure.dead_letter AS d WHERE ' || v_wanted
        || ' ORDER BY d.moved_at DESC, d.id DESC LIMIT $9) AS d'
    INTO v_answer
    USING v_triage, v_queues, v_kinds, v_ids, p_request ->> 'fingerprint', tenure.as_uuid(p_request ->> 'job_id'),
        tenure.from_us((p_request -> 'after' ->> 0)::bigint), tenure.as_uuid(p_request -> 'after' ->> 1), v_limit + 1;
    RETURN coalesce(v_answer, '[]');
END
$$;

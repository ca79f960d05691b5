-- list_audit: what somebody with power did, newest first.
CREATE OR REPLACE FUNCTION tenure.list_audit(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_subject text := p_request ->> 'subject';
    v_answer json;
BEGIN
    EXECUTE 'SELECT json_agg(row_to_json(shown) ORDER BY shown.seq DESC) FROM ('
        'SELECT a.seq, tenure.to_us(a.at) AS at, a.actor, a.act, a.subject, a.reason, a.detail FROM tenure.audit AS a'
        || CASE WHEN v_subject IS NULL THEN '' ELSE ' WHERE a.subject = $1' END
        || ' ORDER BY a.seq DESC LIMIT $2) AS shown'
    INTO v_answer
    USING v_subject, v_limit;
    RETURN coalesce(v_answer, '[]');
END
$$;

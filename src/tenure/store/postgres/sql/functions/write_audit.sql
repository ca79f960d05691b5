-- write_audit: one row of what somebody with power did. A nameless act is refused.
CREATE OR REPLACE FUNCTION tenure.write_audit(
    p_at timestamptz, p_actor text, p_act text, p_subject text, p_reason text, p_detail json
) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    IF coalesce(btrim(p_actor), '') = '' THEN
        RAISE EXCEPTION 'The actor must say who does this; it is empty, so % was refused and nothing was changed.', p_act
            USING ERRCODE = 'TN007';
    END IF;
    INSERT INTO tenure.audit (at, actor, act, subject, reason, detail)
    VALUES (p_at, p_actor, p_act, p_subject, p_reason, coalesce(p_detail, '{}'));
END
$$;

-- release_lease: give a named lease back, if it is still the asker's in that term. The row stays, because the term must go on rising.
CREATE OR REPLACE FUNCTION tenure.release_lease(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    UPDATE tenure.lease AS l
    SET until = least(l.until, tenure.now())
    WHERE l.name = p_request ->> 'name'
        AND l.owner = p_request ->> 'owner'
        AND l.term = (p_request ->> 'term')::bigint;
    RETURN to_json(FOUND);
END
$$;

-- acquire_lease: take a named lease if it is free or run out, or extend one's own. Answers who owns it now.
-- Invariant: one row decides. The term rises with every change of owner and never otherwise, so no term has two owners.
CREATE OR REPLACE FUNCTION tenure.acquire_lease(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_owner text := p_request ->> 'owner';
    v_seconds double precision := (p_request ->> 'seconds')::double precision;
    v_lease tenure.lease;
BEGIN
    IF v_seconds IS NULL OR NOT v_seconds > 0 OR v_seconds > 86400 * 366 THEN
        RAISE EXCEPTION 'A named lease lasts more than 0 seconds and at most a year, not % seconds.', v_seconds USING ERRCODE = 'TN007';
    END IF;
    IF coalesce(btrim(v_owner), '') = '' OR coalesce(btrim(p_request ->> 'name'), '') = '' THEN
        RAISE EXCEPTION 'A named lease needs a name and an owner.' USING ERRCODE = 'TN007';
    END IF;
    -- Most who ask find it taken. They look and go: no lock, nothing written, nothing synced.
    SELECT * INTO v_lease FROM tenure.lease AS l WHERE l.name = p_request ->> 'name' AND l.owner <> v_owner AND l.until > v_now;
    IF NOT FOUND THEN
        INSERT INTO tenure.lease AS l (name, owner, term, acquired_at, until)
        VALUES (p_request ->> 'name', v_owner, 1, v_now, v_now + v_seconds * interval '1 second')
        ON CONFLICT (name) DO UPDATE
        SET owner = excluded.owner,
            term = l.term + CASE WHEN l.owner = excluded.owner THEN 0 ELSE 1 END,
            acquired_at = CASE WHEN l.owner = excluded.owner THEN l.acquired_at ELSE excluded.acquired_at END,
            until = excluded.until
        WHERE l.owner = excluded.owner OR l.until <= v_now;
        SELECT * INTO STRICT v_lease FROM tenure.lease AS l WHERE l.name = p_request ->> 'name';
    END IF;
    RETURN json_build_object(
        'name', v_lease.name, 'owner', v_lease.owner, 'term', v_lease.term, 'until', tenure.to_us(v_lease.until),
        'acquired', v_lease.owner = v_owner
    );
END
$$;

-- exchange: a worker's one call. Settle what ended, claim for the free slots: one statement, one commit, one round trip.
-- Takes {"outcomes": {"done", "rest"}, "claim": {…}}, either may be absent. Answers {"settled": …, "granted": …, "refused": {"gate", "act"}}.
-- If a gate refuses the claim, what was settled stands; with nothing to settle the refusal is raised.
-- The plan is pinned by the settings below: no statement here may ever read a table from end to end, whatever its statistics say.
CREATE OR REPLACE FUNCTION tenure.exchange(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_claim json := p_request -> 'claim';
    v_outcomes json := p_request -> 'outcomes';
    v_settled json;
    v_granted json;
    v_detail text;
BEGIN
    IF v_outcomes IS NULL THEN
        RETURN json_build_object('granted', coalesce(tenure.grant_few(v_claim), tenure.grant_jobs(v_claim, v_now)));
    END IF;
    v_settled := tenure.settle_outcomes(v_outcomes, v_now);
    IF v_claim IS NULL THEN
        RETURN json_build_object('settled', v_settled);
    END IF;
    v_granted := tenure.grant_few(v_claim);
    IF v_granted IS NOT NULL THEN
        RETURN json_build_object('settled', v_settled, 'granted', v_granted);
    END IF;
    BEGIN
        RETURN json_build_object('settled', v_settled, 'granted', tenure.grant_jobs(v_claim, v_now));
    EXCEPTION WHEN SQLSTATE 'TN002' THEN
        GET STACKED DIAGNOSTICS v_detail = PG_EXCEPTION_DETAIL;
        RETURN json_build_object('settled', v_settled, 'refused', v_detail::json);
    END;
END
$$;

-- claim and settle are exchanges with one side empty; a worker in any language may call them by themselves.
CREATE OR REPLACE FUNCTION tenure.claim(p_claim json) RETURNS json
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT tenure.exchange(json_build_object('claim', p_claim)) -> 'granted' $$;

CREATE OR REPLACE FUNCTION tenure.settle(p_outcomes json) RETURNS json
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT tenure.exchange(json_build_object('outcomes', p_outcomes)) -> 'settled' $$;

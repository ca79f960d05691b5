-- expire_leases: take back jobs whose lease ran out, up to p_limit; or, with p_worker, whatever that worker holds, run out or not.
-- The attempt was counted at the claim and is not counted again. Rows that somebody works on are skipped: one guarded look,
-- one write, under a lock. p_after: everything up to there was looked at before. Answers [id, token, state] for each.
CREATE OR REPLACE FUNCTION tenure.expire_leases(p_now timestamptz, p_after timestamptz, p_limit integer, p_worker text) RETURNS json[]
LANGUAGE plpgsql
AS $$
DECLARE
    -- A bound in either case, so that the index on lease_until serves: a claim must not walk whatever others hold.
    v_cutoff timestamptz := CASE WHEN p_worker IS NULL THEN tenure.expiry_cutoff(p_now) ELSE 'infinity' END;
    v_job tenure.job;
    v_answers json[] := '{}';
    v_alive boolean;
BEGIN
    FOR v_job IN
        SELECT j.*
        FROM tenure.job AS j
        WHERE j.state IN ('leased', 'running')
            AND j.lease_until <= v_cutoff AND j.lease_until > coalesce(p_after, '-infinity')
            AND (p_worker IS NULL OR j.lease_owner = p_worker)
        ORDER BY j.lease_until
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    LOOP
        v_alive := p_worker IS NULL AND EXISTS (
            SELECT 1 FROM tenure.worker AS w WHERE w.id = v_job.lease_owner AND w.last_seen_at >= v_job.lease_until);
        v_answers := v_answers || json_build_array(v_job.id, v_job.token, tenure.finish(
            v_job, 'expire', CASE WHEN v_alive THEN 'lease_lost' ELSE 'crash' END,
            format('The lease of worker %s ended at %s without a word from it.', v_job.lease_owner,
                to_char(v_job.lease_until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')),
            NULL, NULL, p_now));
    END LOOP;
    RETURN v_answers;
END
$$;

-- reap: expire_leases as a door of its own. Takes {"limit": n}.
CREATE OR REPLACE FUNCTION tenure.reap(p_request json) RETURNS json
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$ SELECT array_to_json(tenure.expire_leases(tenure.now(), NULL, coalesce((p_request ->> 'limit')::integer, 1000), NULL)) $$;

-- remove_workers: {"ids", "unseen_seconds"} → who was removed. What they hold is taken back first.
CREATE OR REPLACE FUNCTION tenure.remove_workers(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_unseen double precision := (p_request ->> 'unseen_seconds')::double precision;
    v_removed text[];
BEGIN
    v_removed := tenure.remove_these_workers(coalesce(tenure.text_list(p_request -> 'ids'), '{}'), 'infinity', v_now);
    IF v_unseen IS NOT NULL THEN
        v_removed := v_removed || tenure.remove_silent_workers(v_unseen, NULL, v_now);
    END IF;
    RETURN array_to_json(v_removed);
END
$$;

-- remove_silent_workers: those not seen for so long. For a while after the server started nobody counts as silent, nor while the gate
-- `heartbeat` is closed: they could not speak.
CREATE OR REPLACE FUNCTION tenure.remove_silent_workers(p_unseen double precision, p_limit bigint, p_now timestamptz) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_before timestamptz := tenure.expiry_cutoff(p_now) - p_unseen * interval '1 second';
BEGIN
    IF EXISTS (SELECT 1 FROM tenure.gate AS g WHERE g.name = 'heartbeat' AND NOT g.is_open) THEN
        RETURN '{}';
    END IF;
    RETURN tenure.remove_these_workers(
        ARRAY(SELECT w.id FROM tenure.worker AS w WHERE w.last_seen_at <= v_before ORDER BY w.last_seen_at LIMIT p_limit), v_before, p_now
    );
END
$$;

-- remove_these_workers: the rows go; jobs first, in the order of their ids, then waiters, then workers, as the locks ask for.
-- A worker that was seen after p_before, because it has spoken meanwhile, stays and keeps its jobs.
CREATE OR REPLACE FUNCTION tenure.remove_these_workers(p_ids text[], p_before timestamptz, p_now timestamptz) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_job tenure.job;
    v_removed text[];
BEGIN
    FOR v_job IN
        SELECT j.*
        FROM tenure.job AS j
        WHERE j.state IN ('leased', 'running') AND j.lease_owner = ANY (p_ids)
        ORDER BY j.id
        FOR UPDATE
    LOOP
        -- Asked after the row was locked, in a statement of its own: the one above may have waited, and knows only the time before.
        CONTINUE WHEN EXISTS (SELECT 1 FROM tenure.worker AS w WHERE w.id = v_job.lease_owner AND w.last_seen_at > p_before);
        PERFORM tenure.finish(
            v_job, 'expire', 'crash', format('Worker %s was removed while it held the job.', v_job.lease_owner), NULL, NULL, p_now
        );
    END LOOP;
    PERFORM 1 FROM tenure.waiter AS t WHERE t.worker = ANY (p_ids) ORDER BY t.queue, t.worker FOR UPDATE;
    WITH gone AS (
        DELETE FROM tenure.worker AS w WHERE w.id = ANY (p_ids) AND w.last_seen_at <= p_before RETURNING w.id
    )
    SELECT coalesce(array_agg(gone.id ORDER BY gone.id), '{}') INTO v_removed FROM gone;
    DELETE FROM tenure.waiter AS t WHERE t.worker = ANY (v_removed);
    RETURN v_removed;
END
$$;

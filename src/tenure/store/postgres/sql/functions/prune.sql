-- prune: retention, in bounded batches. {"limit", "older_than_seconds", "delete_after_seconds", "worker_seconds", "metric_seconds"} →
-- {"cleaned", "deleted", "events", "workers", "metrics", "more"}.
CREATE OR REPLACE FUNCTION tenure.prune(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_limit bigint := tenure.page_limit(p_request);
    v_worker_seconds double precision := coalesce((p_request ->> 'worker_seconds')::double precision, 86400);
    v_delete_after double precision := (p_request ->> 'delete_after_seconds')::double precision;
    v_cleaned bigint;
    v_deleted bigint[] := '{0,0}';
    v_workers integer;
    v_metrics bigint;
BEGIN
    v_cleaned := tenure.clean_jobs((p_request ->> 'older_than_seconds')::double precision, v_limit, v_now);
    IF v_delete_after IS NOT NULL THEN
        v_deleted := tenure.delete_jobs(v_delete_after, v_limit, v_now);
    END IF;
    v_workers := cardinality(tenure.remove_silent_workers(v_worker_seconds, v_limit, v_now));
    v_metrics := tenure.drop_metrics(coalesce((p_request ->> 'metric_seconds')::double precision, 2592000), v_limit, v_now);
    IF EXISTS (SELECT 1 FROM tenure.profile) THEN
        PERFORM tenure.tally_up(v_now);
    END IF;
    RETURN json_build_object(
        'cleaned', v_cleaned, 'deleted', v_deleted[1], 'events', v_deleted[2], 'workers', v_workers,
        'metrics', v_metrics,
        'more', v_cleaned >= v_limit OR v_deleted[1] >= v_limit OR v_workers >= v_limit OR v_metrics >= v_limit
    );
END
$$;

-- clean_jobs: take payload, result and errors from jobs that ended longer ago than their queue retains. The row stays, and so does
-- its key. A job with a dead letter that is not closed keeps everything: somebody may still need it. What is locked is left for
-- the next time, so a revive and a prune never wait for each other.
CREATE OR REPLACE FUNCTION tenure.clean_jobs(p_older_than double precision, p_limit bigint, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_ids uuid[];
BEGIN
    v_ids := ARRAY(
        SELECT j.id
        FROM tenure.job AS j
        JOIN tenure.queue AS q ON q.name = j.queue
        WHERE j.finished_at IS NOT NULL
            AND j.cleaned_at IS NULL
            AND j.finished_at <= p_now - coalesce(p_older_than, q.retain_seconds) * interval '1 second'
            AND NOT EXISTS (SELECT 1 FROM tenure.dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
        ORDER BY j.finished_at
        LIMIT p_limit
        FOR UPDATE OF j SKIP LOCKED
    );
    UPDATE tenure.job AS j
    SET payload = NULL,
        result = NULL,
        result_summary = NULL,
        progress = NULL,
        last_error = NULL,
        cleaned_at = p_now,
        updated_at = p_now
    WHERE j.id = ANY (v_ids);
    UPDATE tenure.attempt AS a SET error = NULL WHERE a.job_id = ANY (v_ids) AND a.error IS NOT NULL;
    PERFORM tenure.tally_cleaned(v_ids, false);
    RETURN cardinality(v_ids);
END
$$;

-- delete_jobs: remove cleaned rows that ended longer ago than that, with their attempts, effects and events. Answers {jobs, events}.
CREATE OR REPLACE FUNCTION tenure.delete_jobs(p_after double precision, p_limit bigint, p_now timestamptz) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_ids uuid[];
    v_events bigint;
BEGIN
    v_ids := ARRAY(
        SELECT j.id
        FROM tenure.job AS j
        WHERE j.cleaned_at IS NOT NULL
            AND j.finished_at <= p_now - p_after * interval '1 second'
            AND NOT EXISTS (SELECT 1 FROM tenure.dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
        ORDER BY j.finished_at
        LIMIT p_limit
        FOR UPDATE OF j SKIP LOCKED
    );
    PERFORM tenure.tally_cleaned(v_ids, true);
    DELETE FROM tenure.job AS j WHERE j.id = ANY (v_ids);
    DELETE FROM tenure.attempt AS a WHERE a.job_id = ANY (v_ids);
    DELETE FROM tenure.effect AS f WHERE f.job_id = ANY (v_ids);
    DELETE FROM tenure.event AS e WHERE e.job_id = ANY (v_ids);
    GET DIAGNOSTICS v_events = ROW_COUNT;
    RETURN ARRAY[cardinality(v_ids)::bigint, v_events];
END
$$;

-- drop_metrics: remove the oldest minutes that lie further back than that. Answers how many rows went.
CREATE OR REPLACE FUNCTION tenure.drop_metrics(p_after double precision, p_limit bigint, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_rows bigint;
BEGIN
    -- Materialised: a plan that runs the inner look again would find other rows then, and take more than asked for.
    WITH old AS MATERIALIZED (
        SELECT t.minute, t.queue
        FROM tenure.metric AS t
        WHERE t.minute <= p_now - p_after * interval '1 second'
        ORDER BY t.minute, t.queue
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM tenure.metric AS m
    USING old
    WHERE m.minute = old.minute AND m.queue = old.queue;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END
$$;

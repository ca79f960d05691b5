-- Upkeep: retention, the tally, counted minutes, rows of workers that are gone.

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

-- remove_these_workers: the rows go; jobs first, in the order of their ids, then workers, as the locks ask for.
-- A worker that was seen after p_before, because it has spoken meanwhile, stays and keeps its jobs.
CREATE OR REPLACE FUNCTION tenure.remove_these_workers(p_ids text[], p_before timestamptz, p_now timestamptz) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_jobs tenure.job[];
    v_job tenure.job;
    v_is_beside boolean;
    v_beside text[] := '{}';
    v_removed text[];
BEGIN
    -- Read before the first is written: a cursor would skip the rows that mark_beside writes ahead of it.
    v_jobs := ARRAY(
        SELECT j
        FROM tenure.job AS j
        WHERE j.state IN ('leased', 'running') AND j.lease_owner = ANY (p_ids)
        ORDER BY j.id
        FOR UPDATE
    );
    FOREACH v_job IN ARRAY v_jobs LOOP
        -- Asked after the row was locked, in a statement of its own: the one above may have waited, and knows only the time before.
        CONTINUE WHEN EXISTS (SELECT 1 FROM tenure.worker AS w WHERE w.id = v_job.lease_owner AND w.last_seen_at > p_before);
        v_is_beside := tenure.mark_beside(v_job, true, p_now) OR v_job.is_beside OR v_job.lease_owner = ANY (v_beside);
        IF v_is_beside THEN
            v_beside := v_beside || v_job.lease_owner;
        END IF;
        PERFORM tenure.take_back(v_job, v_is_beside, true, p_now);
    END LOOP;
    WITH gone AS (
        DELETE FROM tenure.worker AS w WHERE w.id = ANY (p_ids) AND w.last_seen_at <= p_before RETURNING w.id
    )
    SELECT coalesce(array_agg(gone.id ORDER BY gone.id), '{}') INTO v_removed FROM gone;
    RETURN v_removed;
END
$$;

-- tally_up: count what ended since the last time, up to a minute ago. Bounded by what ended; repeated at will; skipped where somebody
-- else is at it. Answers up to where everything is counted.
--
-- Invariant: every good end and every cleaned one up to counted_until is in the tally once. An end may be committed after others that
-- carry a later time, so a moment is counted only when every transaction is over that had begun to write a minute after it.
CREATE OR REPLACE FUNCTION tenure.tally_up(p_now timestamptz) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_mark tenure.tally_mark;
BEGIN
    SELECT * INTO v_mark FROM tenure.tally_mark AS m FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF v_mark.next_until IS NOT NULL AND pg_snapshot_xmin(pg_current_snapshot()) >= v_mark.next_xid THEN
        INSERT INTO tenure.tally AS t (profile, kind, state, is_cleaned, day, jobs, attempts, attempts_max, oldest_at, newest_at)
        SELECT
            e.profile, e.kind, e.state, e.is_cleaned, (e.finished_at AT TIME ZONE 'UTC')::date,
            count(*), sum(e.attempt), max(e.attempt), min(e.created_at), max(e.created_at)
        FROM (
            SELECT j.profile, j.kind, j.state, false AS is_cleaned, j.finished_at, j.attempt, j.created_at
            FROM tenure.job AS j
            WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.state = 'succeeded'
                AND j.finished_at > v_mark.counted_until AND j.finished_at <= v_mark.next_until
            UNION ALL
            SELECT j.profile, j.kind, j.state, true, j.finished_at, j.attempt, j.created_at
            FROM tenure.job AS j
            WHERE j.cleaned_at IS NOT NULL
                AND j.finished_at > v_mark.counted_until AND j.finished_at <= v_mark.next_until
        ) AS e
        GROUP BY 1, 2, 3, 4, 5
        ON CONFLICT (profile, kind, state, is_cleaned, day) DO UPDATE
        SET jobs = t.jobs + excluded.jobs,
            attempts = t.attempts + excluded.attempts,
            attempts_max = greatest(t.attempts_max, excluded.attempts_max),
            oldest_at = least(t.oldest_at, excluded.oldest_at),
            newest_at = greatest(t.newest_at, excluded.newest_at);
        v_mark.counted_until := v_mark.next_until;
        v_mark.next_until := NULL;
        UPDATE tenure.tally_mark AS m SET counted_until = v_mark.counted_until, next_until = NULL, next_xid = NULL;
    END IF;
    IF v_mark.next_until IS NULL AND p_now - interval '1 minute' > v_mark.counted_until THEN
        UPDATE tenure.tally_mark AS m
        SET next_until = p_now - interval '1 minute',
            next_xid = pg_snapshot_xmax(pg_current_snapshot());
    END IF;
    RETURN v_mark.counted_until;
END
$$;

-- tally_cleaned: these jobs have just lost their payloads, or with p_gone are about to be deleted; what the tally has of them moves along.
-- The mark is held until the commit, so that no tally_up sees them half moved.
CREATE OR REPLACE FUNCTION tenure.tally_cleaned(p_ids uuid[], p_gone boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_until timestamptz;
    v_moved record;
BEGIN
    SELECT m.counted_until INTO v_until FROM tenure.tally_mark AS m FOR SHARE;
    IF v_until = '-infinity' THEN
        RETURN;
    END IF;
    FOR v_moved IN
        SELECT
            j.profile, j.kind, j.state, (j.finished_at AT TIME ZONE 'UTC')::date AS day,
            count(*) AS jobs, sum(j.attempt) AS attempts, max(j.attempt) AS attempts_max,
            min(j.created_at) AS oldest_at, max(j.created_at) AS newest_at
        FROM tenure.job AS j
        WHERE j.id = ANY (p_ids) AND j.finished_at <= v_until
        GROUP BY 1, 2, 3, 4
        ORDER BY 1, 2, 3, 4
    LOOP
        UPDATE tenure.tally AS t
        SET jobs = t.jobs - v_moved.jobs,
            attempts = t.attempts - v_moved.attempts
        WHERE t.profile = v_moved.profile AND t.kind = v_moved.kind AND t.state = v_moved.state
            AND t.is_cleaned = p_gone AND t.day = v_moved.day;
        IF NOT p_gone THEN
            INSERT INTO tenure.tally AS t (profile, kind, state, is_cleaned, day, jobs, attempts, attempts_max, oldest_at, newest_at)
            VALUES (
                v_moved.profile, v_moved.kind, v_moved.state, true, v_moved.day,
                v_moved.jobs, v_moved.attempts, v_moved.attempts_max, v_moved.oldest_at, v_moved.newest_at
            )
            ON CONFLICT (profile, kind, state, is_cleaned, day) DO UPDATE
            SET jobs = t.jobs + excluded.jobs,
                attempts = t.attempts + excluded.attempts,
                attempts_max = greatest(t.attempts_max, excluded.attempts_max),
                oldest_at = least(t.oldest_at, excluded.oldest_at),
                newest_at = greatest(t.newest_at, excluded.newest_at);
        END IF;
    END LOOP;
    DELETE FROM tenure.tally AS t WHERE t.jobs <= 0;
END
$$;

-- roll_up: count the minutes that are over. {"minutes"} → {"until", "rows", "more"}. Bounded by what happened in them; repeated at will;
-- skipped, with "until" null, where somebody else is at it.
--
-- Invariant: a minute is counted once, with the mark that says so. A change may be committed after others that carry a later time, so
-- minutes are counted only when every transaction is over that had begun to write a minute after them; see tally_up.
CREATE OR REPLACE FUNCTION tenure.roll_up(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_minutes integer := coalesce((p_request ->> 'minutes')::integer, 60);
    v_ripe timestamptz := date_trunc('minute', v_now - interval '1 minute', 'UTC');
    v_mark tenure.metric_mark;
    v_rows bigint := 0;
BEGIN
    IF v_minutes NOT BETWEEN 1 AND 1440 THEN
        RAISE EXCEPTION 'Between 1 and 1440 minutes can be counted at once, not %.', v_minutes USING ERRCODE = 'TN007';
    END IF;
    SELECT * INTO v_mark FROM tenure.metric_mark AS m FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN json_build_object('until', NULL, 'rows', 0, 'more', false);
    END IF;
    v_mark.counted_until := coalesce(v_mark.counted_until, v_ripe - interval '1 hour');
    IF v_mark.counted_until < v_ripe - interval '30 days' AND v_mark.next_until IS NULL THEN
        v_mark.counted_until := v_ripe - interval '30 days';
    END IF;
    IF v_mark.next_until IS NOT NULL AND pg_snapshot_xmin(pg_current_snapshot()) >= v_mark.next_xid THEN
        v_rows := tenure.count_minutes(v_mark.counted_until, v_mark.next_until, v_now);
        v_mark.counted_until := v_mark.next_until;
        v_mark.next_until := NULL;
        v_mark.next_xid := NULL;
    END IF;
    IF v_mark.next_until IS NULL AND v_ripe > v_mark.counted_until THEN
        v_mark.next_until := least(v_ripe, v_mark.counted_until + v_minutes * interval '1 minute');
        v_mark.next_xid := pg_snapshot_xmax(pg_current_snapshot());
    END IF;
    UPDATE tenure.metric_mark AS m
    SET counted_until = v_mark.counted_until,
        next_until = v_mark.next_until,
        next_xid = v_mark.next_xid
    WHERE (m.counted_until, m.next_until, m.next_xid)
        IS DISTINCT FROM (v_mark.counted_until, v_mark.next_until, v_mark.next_xid);
    RETURN json_build_object(
        'until', tenure.to_us(v_mark.counted_until), 'rows', v_rows, 'more', v_mark.next_until IS NOT NULL
    );
END
$$;

-- count_minutes: write what happened from p_after until just before p_until. Created jobs are found by the time in their ids, with a
-- minute of patience for clocks that differ; ends by job_finished_idx and job_cleaned_idx; deaths by dead_letter_triage_idx, since a
-- job that was revived no longer tells of its death. Workers' silence is known of the present only.
-- Without jit: the price put on a sequential scan, where one is left, would have each count compiled for seconds.
CREATE OR REPLACE FUNCTION tenure.count_minutes(p_after timestamptz, p_until timestamptz, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_rows bigint;
BEGIN
    INSERT INTO tenure.metric AS m (minute, queue, profile, created, completed, failed, latency_seconds, heartbeat_delay_seconds)
    SELECT
        date_trunc('minute', h.at, 'UTC'), h.queue, q.profile,
        count(*) FILTER (WHERE h.what = 'created'),
        count(*) FILTER (WHERE h.what = 'completed'),
        count(*) FILTER (WHERE h.what = 'failed'),
        coalesce(sum(h.seconds) FILTER (WHERE h.what = 'completed'), 0),
        max(h.seconds) FILTER (WHERE h.what = 'silence')
    FROM (
        SELECT 'created' AS what, j.created_at AS at, j.queue, NULL::double precision AS seconds
        FROM tenure.job AS j
        WHERE j.id >= tenure.id_from(p_after - interval '1 minute') AND j.id < tenure.id_from(p_until + interval '1 minute')
            AND j.created_at >= p_after AND j.created_at < p_until
        UNION ALL
        SELECT 'completed', j.finished_at, j.queue, greatest(0, extract(epoch FROM j.finished_at - j.run_at))
        FROM tenure.job AS j
        WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.state = 'succeeded'
            AND j.finished_at >= p_after AND j.finished_at < p_until
        UNION ALL
        SELECT 'completed', j.finished_at, j.queue, greatest(0, extract(epoch FROM j.finished_at - j.run_at))
        FROM tenure.job AS j
        WHERE j.cleaned_at IS NOT NULL AND j.state = 'succeeded' AND j.finished_at >= p_after AND j.finished_at < p_until
        UNION ALL
        SELECT 'failed', d.moved_at, d.queue, NULL
        FROM tenure.dead_letter AS d
        WHERE d.triage IN ('pending', 'acknowledged', 'manual_replay', 'escalated', 'closed')
            AND d.moved_at >= p_after AND d.moved_at < p_until
        UNION ALL
        SELECT 'silence', p_until - interval '1 minute', s.queue, greatest(0, extract(epoch FROM p_now - w.last_seen_at))
        FROM tenure.worker AS w
        CROSS JOIN unnest(w.queues) AS s(queue)
        WHERE p_now < p_until + interval '5 minutes'
    ) AS h
    JOIN tenure.queue AS q ON q.name = h.queue
    GROUP BY 1, 2, 3
    ON CONFLICT (minute, queue) DO UPDATE
    SET profile = excluded.profile,
        created = excluded.created,
        completed = excluded.completed,
        failed = excluded.failed,
        latency_seconds = excluded.latency_seconds,
        heartbeat_delay_seconds = excluded.heartbeat_delay_seconds;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END
$$;

-- id_from: the lowest UUIDv7 that may have been made at that moment.
CREATE OR REPLACE FUNCTION tenure.id_from(p_moment timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT rpad(lpad(to_hex(tenure.to_us(p_moment) / 1000), 12, '0'), 32, '0')::uuid $$;

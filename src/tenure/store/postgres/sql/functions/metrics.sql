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

-- list_metrics: counted minutes. {"minutes", "queues", "limit"} → [[minute, queue, profile, created, completed, failed,
-- latency_average, error_rate, heartbeat_delay], …], newest first.
CREATE OR REPLACE FUNCTION tenure.list_metrics(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_since timestamptz := date_trunc('minute', tenure.now(), 'UTC')
        - coalesce((p_request ->> 'minutes')::double precision, 60) * interval '1 minute';
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_limit bigint := tenure.page_limit(p_request);
BEGIN
    RETURN (
        SELECT coalesce(json_agg(json_build_array(
            tenure.to_us(m.minute), m.queue, m.profile, m.created, m.completed, m.failed,
            m.latency_seconds / nullif(m.completed, 0),
            m.failed::double precision / nullif(m.completed + m.failed, 0),
            m.heartbeat_delay_seconds
        ) ORDER BY m.minute DESC, m.queue COLLATE "C"), '[]')
        FROM (
            SELECT * FROM tenure.metric AS t
            WHERE t.minute >= v_since AND (v_queues IS NULL OR t.queue = ANY (v_queues))
            ORDER BY t.minute DESC, t.queue COLLATE "C"
            LIMIT v_limit
        ) AS m
    );
END
$$;

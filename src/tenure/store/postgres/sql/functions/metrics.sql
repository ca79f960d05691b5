-- Metrics: minutes that are counted once, and the hours and days they are folded into.

-- roll_up: count the minutes that are over. {"minutes"} → {"until", "rows", "more"}. Bounded by what happened in them; repeated at will;
-- skipped, with "until" null, where another session is at it.
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
    v_full_at timestamptz;
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
    v_mark.hour_until := coalesce(v_mark.hour_until, date_trunc('hour', v_mark.counted_until, 'UTC'));
    v_mark.day_until := coalesce(v_mark.day_until, date_trunc('day', v_mark.counted_until, 'UTC'));
    IF v_mark.next_until IS NOT NULL AND pg_snapshot_xmin(pg_current_snapshot()) >= v_mark.next_xid THEN
        v_rows := tenure.count_minutes(v_mark.counted_until, v_mark.next_until, v_now);
        v_mark.counted_until := v_mark.next_until;
        v_mark.next_until := NULL;
        v_mark.next_xid := NULL;
        v_mark := tenure.fold_metrics(v_mark);
    END IF;
    IF v_mark.next_until IS NULL AND v_ripe > v_mark.counted_until THEN
        v_mark.next_until := least(v_ripe, v_mark.counted_until + v_minutes * interval '1 minute');
        v_full_at := tenure.full_at(v_mark.counted_until, v_mark.next_until, 5000);
        IF v_full_at IS NOT NULL THEN
            v_mark.next_until := greatest(v_mark.counted_until + interval '1 minute', date_trunc('minute', v_full_at, 'UTC'));
        END IF;
        v_mark.next_xid := pg_snapshot_xmax(pg_current_snapshot());
    END IF;
    UPDATE tenure.metric_mark AS m
    SET counted_until = v_mark.counted_until,
        next_until = v_mark.next_until,
        next_xid = v_mark.next_xid,
        hour_until = v_mark.hour_until,
        day_until = v_mark.day_until
    WHERE (m.counted_until, m.next_until, m.next_xid, m.hour_until, m.day_until)
        IS DISTINCT FROM (v_mark.counted_until, v_mark.next_until, v_mark.next_xid, v_mark.hour_until, v_mark.day_until);
    RETURN json_build_object(
        'until', tenure.to_us(v_mark.counted_until), 'rows', v_rows, 'more', v_mark.next_until IS NOT NULL
    );
END
$$;

-- full_at: when the first job beyond p_most of one sort was made or ended, from p_after until just before p_until; null if there are no
-- more. tenure.store.metrics names the number that roll_up gives.
CREATE OR REPLACE FUNCTION tenure.full_at(p_after timestamptz, p_until timestamptz, p_most integer) RETURNS timestamptz
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
BEGIN
    RETURN least(
        (
            SELECT j.created_at
            FROM tenure.job AS j
            WHERE j.id >= tenure.id_from(p_after) AND j.id < tenure.id_from(p_until)
            ORDER BY j.id
            LIMIT 1 OFFSET p_most
        ),
        (
            SELECT j.finished_at
            FROM tenure.job AS j
            WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.finished_at >= p_after AND j.finished_at < p_until
            ORDER BY j.finished_at
            LIMIT 1 OFFSET p_most
        ),
        (
            SELECT j.finished_at
            FROM tenure.job AS j
            WHERE j.cleaned_at IS NOT NULL AND j.finished_at >= p_after AND j.finished_at < p_until
            ORDER BY j.finished_at
            LIMIT 1 OFFSET p_most
        ),
        (
            SELECT a.ended_at
            FROM tenure.attempt AS a
            WHERE a.ended_at >= p_after AND a.ended_at < p_until
            ORDER BY a.ended_at
            LIMIT 1 OFFSET p_most
        )
    );
END
$$;

-- count_minutes: write what happened from p_after until just before p_until. Created jobs are found by the time in their ids, with a
-- minute of patience for clocks that differ, and ids that are no UUIDv7 by job_created_idx; ends by job_finished_idx and job_cleaned_idx;
-- deaths by dead_letter_triage_idx, since a job that was revived no longer tells of its death; failed attempts by attempt_ended_idx.
-- Workers' silence is known of the present only, and booked to no minute that was over before the worker began.
-- One plan for every minute: by itself PostgreSQL makes the first five calls of a session plan theirs, which reads more pages than they do.
-- Without jit: the price put on a sequential scan, where one is left, would have each count compiled for seconds.
CREATE OR REPLACE FUNCTION tenure.count_minutes(p_after timestamptz, p_until timestamptz, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_rows bigint;
BEGIN
    INSERT INTO tenure.metric AS m (
        minute, queue, profile, created, completed, failed, attempts_failed, retried, expired, cancelled, latency_seconds, busy_seconds,
        heartbeat_delay_seconds
    )
    SELECT
        date_trunc('minute', h.at, 'UTC'), h.queue, q.profile,
        count(*) FILTER (WHERE h.what = 'created'),
        count(*) FILTER (WHERE h.what = 'completed'),
        count(*) FILTER (WHERE h.what = 'failed'),
        count(*) FILTER (WHERE h.what IN ('retried', 'expired', 'ended')),
        count(*) FILTER (WHERE h.what = 'retried'),
        count(*) FILTER (WHERE h.what = 'expired'),
        count(*) FILTER (WHERE h.what = 'cancelled'),
        coalesce(sum(greatest(0, h.seconds)) FILTER (WHERE h.what = 'completed'), 0),
        coalesce(sum(greatest(0, h.busy)), 0),
        max(greatest(0, h.seconds)) FILTER (WHERE h.what = 'silence')
    FROM (
        SELECT 'created' AS what, j.created_at AS at, j.queue, NULL::double precision AS seconds, NULL::double precision AS busy
        FROM tenure.job AS j
        WHERE j.id >= tenure.id_from(p_after - interval '1 minute') AND j.id < tenure.id_from(p_until + interval '1 minute')
            AND (get_byte(uuid_send(j.id), 6) >> 4) = 7 AND j.created_at >= p_after AND j.created_at < p_until
        UNION ALL
        SELECT 'created', j.created_at, j.queue, NULL, NULL
        FROM tenure.job AS j
        WHERE (get_byte(uuid_send(j.id), 6) >> 4) <> 7 AND j.created_at >= p_after AND j.created_at < p_until
        UNION ALL
        SELECT CASE j.state WHEN 'succeeded' THEN 'completed' ELSE 'cancelled' END, j.finished_at, j.queue,
            extract(epoch FROM j.finished_at - j.created_at),
            CASE j.state WHEN 'succeeded' THEN extract(epoch FROM j.finished_at - j.claimed_at) END
        FROM tenure.job AS j
        WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.state IN ('succeeded', 'cancelled')
            AND j.finished_at >= p_after AND j.finished_at < p_until
        UNION ALL
        SELECT CASE j.state WHEN 'succeeded' THEN 'completed' ELSE 'cancelled' END, j.finished_at, j.queue,
            extract(epoch FROM j.finished_at - j.created_at),
            CASE j.state WHEN 'succeeded' THEN extract(epoch FROM j.finished_at - j.claimed_at) END
        FROM tenure.job AS j
        WHERE j.cleaned_at IS NOT NULL AND j.state IN ('succeeded', 'cancelled') AND j.finished_at >= p_after AND j.finished_at < p_until
        UNION ALL
        SELECT 'failed', d.moved_at, d.queue, NULL, NULL
        FROM tenure.dead_letter AS d
        WHERE d.triage IN ('pending', 'acknowledged', 'manual_replay', 'escalated', 'closed')
            AND d.moved_at >= p_after AND d.moved_at < p_until
        UNION ALL
        SELECT CASE WHEN a.outcome IN ('retried', 'expired') THEN a.outcome WHEN a.outcome IN ('dead', 'failed') THEN 'ended' ELSE 'other' END,
            a.ended_at, j.queue, NULL, extract(epoch FROM a.ended_at - a.claimed_at)
        FROM tenure.attempt AS a
        JOIN tenure.job AS j ON j.id = a.job_id
        WHERE a.ended_at >= p_after AND a.ended_at < p_until
        UNION ALL
        SELECT 'silence', p_until - interval '1 minute', s.queue, extract(epoch FROM p_now - w.last_seen_at), NULL
        FROM tenure.worker AS w
        CROSS JOIN unnest(w.queues) AS s(queue)
        WHERE p_now < p_until + interval '5 minutes' AND w.started_at < p_until
    ) AS h
    JOIN tenure.queue AS q ON q.name = h.queue
    GROUP BY 1, 2, 3
    ON CONFLICT (minute, queue) DO NOTHING;
    GET DIAGNOSTICS v_rows = ROW_COUNT;

    INSERT INTO tenure.metric_part (span, at, queue, what, part, n)
    SELECT 'minute', date_trunc('minute', h.at, 'UTC'), h.queue, h.what, coalesce(h.class, tenure.bucket_of(h.seconds)::text), count(*)
    FROM (
        SELECT w.what, j.finished_at AS at, j.queue, NULL AS class, extract(epoch FROM CASE w.what
            WHEN 'wait' THEN j.claimed_at - j.run_at WHEN 'run' THEN j.finished_at - j.claimed_at ELSE j.finished_at - j.created_at END) AS seconds
        FROM (
            SELECT t.finished_at, t.queue, t.claimed_at, t.run_at, t.created_at
            FROM tenure.job AS t
            WHERE t.finished_at IS NOT NULL AND t.cleaned_at IS NULL AND t.state = 'succeeded'
                AND t.finished_at >= p_after AND t.finished_at < p_until
            UNION ALL
            SELECT t.finished_at, t.queue, t.claimed_at, t.run_at, t.created_at
            FROM tenure.job AS t
            WHERE t.cleaned_at IS NOT NULL AND t.state = 'succeeded' AND t.finished_at >= p_after AND t.finished_at < p_until
        ) AS j
        CROSS JOIN unnest(ARRAY['wait', 'run', 'total']) AS w(what)
        UNION ALL
        SELECT 'class', a.ended_at, j.queue, a.failure_class, NULL
        FROM tenure.attempt AS a
        JOIN tenure.job AS j ON j.id = a.job_id
        WHERE a.ended_at >= p_after AND a.ended_at < p_until AND a.outcome IN ('retried', 'expired', 'dead', 'failed')
        UNION ALL
        SELECT 'silence', p_until - interval '1 minute', s.queue, NULL, extract(epoch FROM p_now - w.last_seen_at)
        FROM tenure.worker AS w
        CROSS JOIN unnest(w.queues) AS s(queue)
        WHERE p_now < p_until + interval '5 minutes' AND w.started_at < p_until
    ) AS h
    JOIN tenure.queue AS q ON q.name = h.queue
    GROUP BY 2, 3, 4, 5
    ON CONFLICT DO NOTHING;
    PERFORM tenure.add_totals(p_after, p_until);
    RETURN v_rows;
END
$$;

-- bucket_of: the bucket of a duration in seconds. tenure.model.buckets has the rule.
CREATE OR REPLACE FUNCTION tenure.bucket_of(p_seconds double precision) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN p_seconds * 1e6 <= 1 THEN 0 ELSE ceil(ln(p_seconds * 1e6) / ln(1.1::double precision))::integer END
$$;

-- fold_metrics: hours that are counted whole from their minutes, days from their hours. Answers the mark with how far that is.
CREATE OR REPLACE FUNCTION tenure.fold_metrics(p_mark tenure.metric_mark) RETURNS tenure.metric_mark
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_mark tenure.metric_mark := p_mark;
    v_hour timestamptz := date_trunc('hour', p_mark.counted_until, 'UTC');
    v_day timestamptz := date_trunc('day', p_mark.counted_until, 'UTC');
BEGIN
    IF v_hour > v_mark.hour_until THEN
        INSERT INTO tenure.metric_span (
            span, at, queue, profile, created, completed, failed, attempts_failed, retried, expired, cancelled, latency_seconds, busy_seconds,
            heartbeat_delay_seconds
        )
        SELECT 'hour', date_trunc('hour', m.minute, 'UTC'), m.queue, max(m.profile), sum(m.created), sum(m.completed), sum(m.failed),
            sum(m.attempts_failed), sum(m.retried), sum(m.expired), sum(m.cancelled), sum(m.latency_seconds), sum(m.busy_seconds),
            max(m.heartbeat_delay_seconds)
        FROM tenure.metric AS m
        WHERE m.minute >= v_mark.hour_until AND m.minute < v_hour
        GROUP BY 2, 3
        ON CONFLICT DO NOTHING;
        PERFORM tenure.fold_parts('minute', 'hour', v_mark.hour_until, v_hour);
        v_mark.hour_until := v_hour;
    END IF;
    IF v_day > v_mark.day_until THEN
        INSERT INTO tenure.metric_span (
            span, at, queue, profile, created, completed, failed, attempts_failed, retried, expired, cancelled, latency_seconds, busy_seconds,
            heartbeat_delay_seconds
        )
        SELECT 'day', date_trunc('day', m.at, 'UTC'), m.queue, max(m.profile), sum(m.created), sum(m.completed), sum(m.failed),
            sum(m.attempts_failed), sum(m.retried), sum(m.expired), sum(m.cancelled), sum(m.latency_seconds), sum(m.busy_seconds),
            max(m.heartbeat_delay_seconds)
        FROM tenure.metric_span AS m
        WHERE m.span = 'hour' AND m.at >= v_mark.day_until AND m.at < v_day
        GROUP BY 2, 3
        ON CONFLICT DO NOTHING;
        PERFORM tenure.fold_parts('hour', 'day', v_mark.day_until, v_day);
        v_mark.day_until := v_day;
    END IF;
    RETURN v_mark;
END
$$;

-- fold_parts: the counts beside them: merging is adding.
CREATE OR REPLACE FUNCTION tenure.fold_parts(p_from text, p_to text, p_after timestamptz, p_until timestamptz) RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    INSERT INTO tenure.metric_part (span, at, queue, what, part, n)
    SELECT p_to, date_trunc(p_to, p.at, 'UTC'), p.queue, p.what, p.part, sum(p.n)
    FROM tenure.metric_part AS p
    WHERE p.span = p_from AND p.at >= p_after AND p.at < p_until
    GROUP BY 2, 3, 4, 5
    ON CONFLICT DO NOTHING
$$;

-- id_from: the lowest UUIDv7 that may have been made at that moment.
CREATE OR REPLACE FUNCTION tenure.id_from(p_moment timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT rpad(lpad(to_hex(tenure.to_us(p_moment) / 1000), 12, '0'), 32, '0')::uuid $$;

-- drop_metrics: remove the oldest minutes that lie further back than that, buckets of minutes after two days, and hours with theirs after
-- ninety. Days stay. Answers how many rows of minutes went.
CREATE OR REPLACE FUNCTION tenure.drop_metrics(p_after double precision, p_limit bigint, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_rows bigint;
BEGIN
    -- Materialised: a plan that runs the inner look again would find other rows then, and take more than asked for.
    WITH old AS MATERIALIZED (
        SELECT p.span, p.at, p.queue, p.what, p.part
        FROM tenure.metric_part AS p
        WHERE p.span = 'minute' AND p.at <= p_now - interval '2 days' OR p.span = 'hour' AND p.at <= p_now - interval '90 days'
        LIMIT 10 * p_limit
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM tenure.metric_part AS m
    USING old
    WHERE (m.span, m.at, m.queue, m.what, m.part) = (old.span, old.at, old.queue, old.what, old.part);
    WITH old AS MATERIALIZED (
        SELECT s.at, s.queue
        FROM tenure.metric_span AS s
        WHERE s.span = 'hour' AND s.at <= p_now - interval '90 days'
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM tenure.metric_span AS m
    USING old
    WHERE m.span = 'hour' AND m.at = old.at AND m.queue = old.queue;
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

-- list_metrics: counted minutes. {"minutes", "queues", "limit", "after": [minute, queue]} → [[minute, queue, profile, created, completed,
-- failed, latency_average, error_rate, heartbeat_delay, attempts_failed], …], newest first.
CREATE OR REPLACE FUNCTION tenure.list_metrics(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_since timestamptz := date_trunc('minute', tenure.now(), 'UTC')
        - coalesce((p_request ->> 'minutes')::double precision, 60) * interval '1 minute';
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_limit bigint := tenure.page_limit(p_request);
    v_minute timestamptz := tenure.from_us((p_request -> 'after' ->> 0)::bigint);
    v_queue text := p_request -> 'after' ->> 1;
BEGIN
    RETURN (
        SELECT coalesce(json_agg(json_build_array(
            tenure.to_us(m.minute), m.queue, m.profile, m.created, m.completed, m.failed,
            m.latency_seconds / nullif(m.completed, 0),
            m.attempts_failed::double precision / nullif(m.completed + m.attempts_failed, 0),
            m.heartbeat_delay_seconds,
            m.attempts_failed
        ) ORDER BY m.minute DESC, m.queue COLLATE "C"), '[]')
        FROM (
            SELECT * FROM tenure.metric AS t
            WHERE t.minute >= v_since AND (v_queues IS NULL OR t.queue = ANY (v_queues))
                AND (v_minute IS NULL OR t.minute < v_minute OR t.minute = v_minute AND t.queue COLLATE "C" > v_queue COLLATE "C")
            ORDER BY t.minute DESC, t.queue COLLATE "C"
            LIMIT v_limit
        ) AS m
    );
END
$$;

-- read_metrics: {"span": minute|hour|day, "since", "until", "queues", "limit", "after": [at, queue], "is_summed"} → {"rows": [[at, queue,
-- profile, created, completed, failed, attempts_failed, retried, expired, cancelled, latency_seconds, busy_seconds, heartbeat_delay,
-- [[what, part, n], …]], …], "counted_until", "hour_until", "day_until"}, oldest first. Moments are microseconds; since and until may be
-- null. With is_summed a row stands for all queues of its span: queue and profile are empty, and so is the last entry.
CREATE OR REPLACE FUNCTION tenure.read_metrics(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_span text := p_request ->> 'span';
    v_since timestamptz := coalesce(tenure.from_us((p_request ->> 'since')::bigint), '-infinity');
    v_until timestamptz := coalesce(tenure.from_us((p_request ->> 'until')::bigint), 'infinity');
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_limit bigint := tenure.page_limit(p_request);
    v_at timestamptz := tenure.from_us((p_request -> 'after' ->> 0)::bigint);
    v_queue text := p_request -> 'after' ->> 1;
    v_summed boolean := coalesce((p_request ->> 'is_summed')::boolean, false);
BEGIN
    IF coalesce(v_span, '') NOT IN ('minute', 'hour', 'day') THEN
        RAISE EXCEPTION 'The span is %; it is minute, hour or day.', quote_nullable(v_span) USING ERRCODE = 'TN007';
    END IF;
    IF v_summed THEN
        RETURN (
            SELECT json_build_object(
                'counted_until', tenure.to_us(k.counted_until), 'hour_until', tenure.to_us(k.hour_until), 'day_until', tenure.to_us(k.day_until),
                'rows', (
                    SELECT coalesce(json_agg(json_build_array(
                        tenure.to_us(m.at), '', '', m.created, m.completed, m.failed, m.attempts_failed, m.retried, m.expired, m.cancelled,
                        m.latency_seconds, m.busy_seconds, m.heartbeat_delay_seconds, '[]'::json
                    ) ORDER BY m.at), '[]')
                    FROM (
                        SELECT s.at, sum(s.created) AS created, sum(s.completed) AS completed, sum(s.failed) AS failed,
                            sum(s.attempts_failed) AS attempts_failed, sum(s.retried) AS retried, sum(s.expired) AS expired,
                            sum(s.cancelled) AS cancelled, sum(s.latency_seconds) AS latency_seconds, sum(s.busy_seconds) AS busy_seconds,
                            max(s.heartbeat_delay_seconds) AS heartbeat_delay_seconds
                        FROM (
                            SELECT t.minute AS at, t.queue, t.created, t.completed, t.failed, t.attempts_failed, t.retried, t.expired,
                                t.cancelled, t.latency_seconds, t.busy_seconds, t.heartbeat_delay_seconds
                            FROM tenure.metric AS t
                            WHERE v_span = 'minute' AND t.minute >= v_since AND t.minute < v_until
                            UNION ALL
                            SELECT t.at, t.queue, t.created, t.completed, t.failed, t.attempts_failed, t.retried, t.expired,
                                t.cancelled, t.latency_seconds, t.busy_seconds, t.heartbeat_delay_seconds
                            FROM tenure.metric_span AS t
                            WHERE t.span = v_span AND t.at >= v_since AND t.at < v_until
                        ) AS s
                        WHERE (v_queues IS NULL OR s.queue = ANY (v_queues)) AND (v_at IS NULL OR s.at > v_at)
                        GROUP BY s.at
                        ORDER BY s.at
                        LIMIT v_limit
                    ) AS m
                ))
            FROM tenure.metric_mark AS k
        );
    END IF;
    RETURN (
        SELECT json_build_object(
            'counted_until', tenure.to_us(k.counted_until), 'hour_until', tenure.to_us(k.hour_until), 'day_until', tenure.to_us(k.day_until),
            'rows', (
                SELECT coalesce(json_agg(json_build_array(
                    tenure.to_us(m.at), m.queue, m.profile, m.created, m.completed, m.failed, m.attempts_failed, m.retried, m.expired,
                    m.cancelled, m.latency_seconds, m.busy_seconds, m.heartbeat_delay_seconds,
                    (
                        SELECT coalesce(json_agg(json_build_array(p.what, p.part, p.n)), '[]')
                        FROM tenure.metric_part AS p
                        WHERE p.span = v_span AND p.at = m.at AND p.queue = m.queue
                    )
                ) ORDER BY m.at, m.queue COLLATE "C"), '[]')
                FROM (
                    SELECT s.*
                    FROM (
                        SELECT t.minute AS at, t.queue, t.profile, t.created, t.completed, t.failed, t.attempts_failed, t.retried, t.expired,
                            t.cancelled, t.latency_seconds, t.busy_seconds, t.heartbeat_delay_seconds
                        FROM tenure.metric AS t
                        WHERE v_span = 'minute' AND t.minute >= v_since AND t.minute < v_until
                        UNION ALL
                        SELECT t.at, t.queue, t.profile, t.created, t.completed, t.failed, t.attempts_failed, t.retried, t.expired,
                            t.cancelled, t.latency_seconds, t.busy_seconds, t.heartbeat_delay_seconds
                        FROM tenure.metric_span AS t
                        WHERE t.span = v_span AND t.at >= v_since AND t.at < v_until
                    ) AS s
                    WHERE (v_queues IS NULL OR s.queue = ANY (v_queues))
                        AND (v_at IS NULL OR s.at > v_at OR s.at = v_at AND s.queue COLLATE "C" > v_queue COLLATE "C")
                    ORDER BY s.at, s.queue COLLATE "C"
                    LIMIT v_limit
                ) AS m
            ))
        FROM tenure.metric_mark AS k
    );
END
$$;

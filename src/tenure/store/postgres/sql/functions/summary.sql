-- summary: how it goes. {"window_seconds", "queues", "limit"} → {"at", "ran", "stuck_count", "stuck", "backlog", "repeated"}.
-- Looks at jobs that ended within the window (by job_finished_idx) and at live ones (by their partial indexes), never at the rest.
CREATE OR REPLACE FUNCTION tenure.summary(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_since timestamptz := v_now - (p_request ->> 'window_seconds')::double precision * interval '1 second';
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_limit bigint := tenure.page_limit(p_request);
BEGIN
    RETURN json_build_object(
        'at', tenure.to_us(v_now),
        'ran', tenure.sum_ran(v_since, v_queues),
        'stuck_count', (
            SELECT count(*) FROM tenure.job AS j
            WHERE j.state IN ('leased', 'running') AND j.lease_until <= v_now AND (v_queues IS NULL OR j.queue = ANY (v_queues))),
        'stuck', (
            SELECT coalesce(json_agg(json_build_array(s.id, s.queue, s.kind, s.state, s.lease_owner, s.attempt, tenure.to_us(s.lease_until))
                ORDER BY s.lease_until), '[]')
            FROM (
                SELECT j.* FROM tenure.job AS j
                WHERE j.state IN ('leased', 'running') AND j.lease_until <= v_now AND (v_queues IS NULL OR j.queue = ANY (v_queues))
                ORDER BY j.lease_until LIMIT v_limit
            ) AS s),
        'backlog', tenure.sum_backlog(v_now, v_queues),
        'repeated', tenure.sum_repeated(v_since, v_queues, v_limit));
END
$$;

-- sum_ran: what ended within the window, by queue and kind, with how long it took.
CREATE OR REPLACE FUNCTION tenure.sum_ran(p_since timestamptz, p_queues text[]) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    WITH ended AS (
        SELECT j.queue, j.kind, j.state, j.finished_at,
            CASE WHEN j.state = 'succeeded' THEN extract(epoch FROM j.finished_at - j.claimed_at)::double precision END AS run_seconds,
            CASE WHEN j.state = 'succeeded' THEN greatest(0, extract(epoch FROM j.claimed_at - j.run_at))::double precision END AS wait_seconds
        FROM tenure.job AS j
        WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.finished_at > p_since
            AND (p_queues IS NULL OR j.queue = ANY (p_queues))
    ), by_kind AS (
        SELECT e.queue, e.kind,
            count(*) FILTER (WHERE e.state = 'succeeded') AS succeeded,
            count(*) FILTER (WHERE e.state = 'failed') AS failed,
            count(*) FILTER (WHERE e.state = 'dead') AS dead,
            count(*) FILTER (WHERE e.state = 'cancelled') AS cancelled,
            avg(e.run_seconds) AS run_average,
            percentile_disc(ARRAY[0.5, 0.95, 1]) WITHIN GROUP (ORDER BY e.run_seconds) AS runs,
            percentile_disc(0.5) WITHIN GROUP (ORDER BY e.wait_seconds) AS wait_p50,
            max(e.finished_at) AS last_at
        FROM ended AS e
        GROUP BY e.queue, e.kind
    )
    SELECT coalesce(json_agg(json_build_array(
        b.queue, b.kind, b.succeeded, b.failed, b.dead, b.cancelled, b.run_average, b.runs[1], b.runs[2], b.runs[3], b.wait_p50,
        tenure.to_us(b.last_at)) ORDER BY b.queue COLLATE "C", b.kind COLLATE "C"), '[]')
    FROM by_kind AS b
$$;

-- sum_backlog: what waits, by queue.
CREATE OR REPLACE FUNCTION tenure.sum_backlog(p_now timestamptz, p_queues text[]) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    WITH live AS (
        SELECT j.queue, j.state, j.run_at, (j.state = 'queued' AND j.attempt > 0 AND j.failure_class IS NOT NULL) AS is_retry
        FROM tenure.job AS j
        WHERE j.finished_at IS NULL AND (p_queues IS NULL OR j.queue = ANY (p_queues))
    ), by_queue AS (
        SELECT l.queue,
            count(*) FILTER (WHERE l.state = 'queued' AND l.run_at <= p_now) AS due,
            count(*) FILTER (WHERE l.state = 'queued' AND l.run_at > p_now) AS delayed,
            count(*) FILTER (WHERE l.is_retry) AS retrying,
            count(*) FILTER (WHERE l.state IN ('leased', 'running')) AS held,
            count(*) FILTER (WHERE l.state = 'waiting') AS waiting,
            min(l.run_at) FILTER (WHERE l.state = 'queued' AND l.run_at <= p_now) AS oldest_due_at
        FROM live AS l
        GROUP BY l.queue
    )
    SELECT coalesce(json_agg(json_build_array(
        b.queue, b.due, b.delayed, b.retrying, b.held, b.waiting, tenure.to_us(b.oldest_due_at)) ORDER BY b.queue COLLATE "C"), '[]')
    FROM by_queue AS b
$$;

-- sum_repeated: keys that several jobs carry, among those to do and those that ended within the window.
CREATE OR REPLACE FUNCTION tenure.sum_repeated(p_since timestamptz, p_queues text[], p_limit bigint) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    WITH keyed AS (
        SELECT j.id, j.queue, j.kind, j.idempotency_key, j.finished_at
        FROM tenure.job AS j
        WHERE j.idempotency_key IS NOT NULL AND (p_queues IS NULL OR j.queue = ANY (p_queues))
            AND (j.finished_at IS NULL OR (j.finished_at > p_since AND j.cleaned_at IS NULL))
    ), repeated AS (
        SELECT k.queue, k.kind, k.idempotency_key, count(*) AS jobs, count(*) FILTER (WHERE k.finished_at IS NULL) AS active,
            max(k.id::text) AS newest_id
        FROM keyed AS k
        GROUP BY k.queue, k.kind, k.idempotency_key
        HAVING count(*) > 1
        ORDER BY count(*) DESC, k.queue COLLATE "C", k.kind COLLATE "C", k.idempotency_key COLLATE "C"
        LIMIT p_limit
    )
    SELECT coalesce(json_agg(json_build_array(r.queue, r.kind, r.idempotency_key, r.jobs, r.active, r.newest_id)
        ORDER BY r.jobs DESC, r.queue COLLATE "C", r.kind COLLATE "C", r.idempotency_key COLLATE "C"), '[]')
    FROM repeated AS r
$$;

-- standing: where a job stands in its queue. {"job_id", "cap"} → {"at", "ahead", "held_in_queue", "held_with_key", "last_event"} or null.
CREATE OR REPLACE FUNCTION tenure.standing(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_job tenure.job;
BEGIN
    SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = tenure.as_uuid(p_request ->> 'job_id');
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN json_build_object(
        'at', tenure.to_us(tenure.now()),
        'ahead', CASE WHEN v_job.state = 'queued' THEN (
            SELECT count(*) FROM (
                SELECT 1 FROM tenure.job AS j
                WHERE j.queue = v_job.queue AND j.state = 'queued' AND j.is_due
                    AND (j.rank, j.run_at, j.id) < (v_job.rank, v_job.run_at, v_job.id)
                LIMIT (p_request ->> 'cap')::bigint
            ) AS before) ELSE 0 END,
        'held_in_queue', (SELECT count(*) FROM tenure.job AS j WHERE j.state IN ('leased', 'running') AND j.queue = v_job.queue),
        'held_with_key', (SELECT count(*) FROM tenure.job AS j
            WHERE j.state IN ('leased', 'running') AND j.queue = v_job.queue AND j.concurrency_key = v_job.concurrency_key),
        'last_event', (SELECT e.kind FROM tenure.event AS e WHERE e.job_id = v_job.id ORDER BY e.seq DESC LIMIT 1));
END
$$;

-- prunable: what a prune would remove if its limit were none.
CREATE OR REPLACE FUNCTION tenure.prunable(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    -- What it cleans may be old enough to go at once.
    WITH clean AS (
        SELECT j.id, j.finished_at
        FROM tenure.job AS j
        JOIN tenure.queue AS q ON q.name = j.queue
        WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL
            AND j.finished_at <= tenure.now()
                - coalesce((p_request ->> 'older_than_seconds')::double precision, q.retain_seconds) * interval '1 second'
            AND NOT EXISTS (SELECT 1 FROM tenure.dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
    ), gone AS (
        SELECT c.id
        FROM clean AS c
        WHERE c.finished_at <= tenure.now() - (p_request ->> 'delete_after_seconds')::double precision * interval '1 second'
        UNION ALL
        SELECT j.id
        FROM tenure.job AS j
        WHERE j.cleaned_at IS NOT NULL
            AND j.finished_at <= tenure.now() - (p_request ->> 'delete_after_seconds')::double precision * interval '1 second'
            AND NOT EXISTS (SELECT 1 FROM tenure.dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
    )
    SELECT json_build_object(
        'cleaned', (SELECT count(*) FROM clean),
        'deleted', (SELECT count(*) FROM gone),
        'events', (SELECT count(*) FROM tenure.event AS e WHERE e.job_id IN (SELECT g.id FROM gone AS g)),
        'workers', (SELECT count(*) FROM tenure.worker AS w
            WHERE w.last_seen_at <= tenure.now() - coalesce((p_request ->> 'worker_seconds')::double precision, 86400) * interval '1 second'),
        'metrics', (SELECT count(*) FROM tenure.metric AS m
            WHERE m.minute <= tenure.now() - coalesce((p_request ->> 'metric_seconds')::double precision, 2592000) * interval '1 second'),
        'more', false)
$$;

-- newest: the clock, the newest job and the newest event, for whoever inspects.
CREATE OR REPLACE FUNCTION tenure.newest() RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT json_build_object(
        'at', tenure.to_us(tenure.now()),
        'newest_created_at', (SELECT tenure.to_us(j.created_at) FROM tenure.job AS j ORDER BY j.id DESC LIMIT 1),
        'last_event', coalesce((SELECT max(e.seq) FROM tenure.event AS e), 0))
$$;

-- What monitors and autoscalers read: bounded counts, and counters that only rise.

-- backlog: how much work a queue has for workers: jobs that are ready or held, at most p_cap. A paused queue has only what is held.
-- For an autoscaler: its cost is at most p_cap index entries, whatever the table holds.
CREATE OR REPLACE FUNCTION tenure.backlog(p_queue text, p_cap bigint DEFAULT 10000) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_load json := tenure.count_backlog(json_build_object('queue', p_queue, 'cap', p_cap));
BEGIN
    RETURN least(p_cap, (v_load ->> 2)::bigint + CASE WHEN (v_load ->> 4)::boolean THEN 0 ELSE (v_load ->> 1)::bigint END);
END
$$;

-- count_backlog: {"queue", "cap"} → [queue, ready, held, oldest_ready_at, is_paused].
CREATE OR REPLACE FUNCTION tenure.count_backlog(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_queue tenure.queue;
BEGIN
    SELECT * INTO v_queue FROM tenure.queue AS q WHERE q.name = p_request ->> 'queue';
    IF NOT FOUND THEN
        PERFORM tenure.refuse_unknown_queue(p_request ->> 'queue');
    END IF;
    RETURN tenure.load_of(v_queue, tenure.now(), tenure.gauge_cap(p_request));
END
$$;

-- gauge_cap: how far to count.
CREATE OR REPLACE FUNCTION tenure.gauge_cap(p_request json) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_cap bigint := (p_request ->> 'cap')::bigint;
BEGIN
    IF v_cap IS NULL OR v_cap NOT BETWEEN 1 AND 1000000 THEN
        RAISE EXCEPTION 'The cap is %; it is between 1 and 1000000.', coalesce(v_cap::text, 'null') USING ERRCODE = 'TN007';
    END IF;
    RETURN v_cap;
END
$$;

-- load_of: what one queue asks of its workers. Ready jobs are counted in claim order, so that a plan with a sort or a read of the table
-- can never be the cheaper one. Jobs whose time came while no worker made them claimable are looked for among the first p_cap of them.
CREATE OR REPLACE FUNCTION tenure.load_of(p_queue tenure.queue, p_now timestamptz, p_cap bigint) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_ready bigint;
    v_late bigint;
    v_held bigint;
    v_oldest timestamptz;
    v_late_at timestamptz;
BEGIN
    SELECT count(*), min(r.run_at) INTO v_ready, v_oldest
    FROM (
        SELECT j.run_at
        FROM tenure.job AS j
        WHERE j.queue = p_queue.name AND j.state = 'queued' AND j.is_due
        ORDER BY j.queue, (j.suspicion >= 2), coalesce(j.limiter, ''), j.rank, j.run_at, j.id
        LIMIT p_cap
    ) AS r;
    IF v_ready = p_cap THEN
        v_oldest := least(v_oldest, tenure.oldest_head(p_queue.name));
    END IF;
    SELECT count(*), min(l.run_at) INTO v_late, v_late_at
    FROM (
        SELECT j.queue, j.run_at
        FROM tenure.job AS j
        WHERE NOT j.is_due AND j.state IN ('queued', 'waiting') AND j.run_at <= p_now
        ORDER BY j.run_at
        LIMIT p_cap
    ) AS l
    WHERE l.queue = p_queue.name;
    SELECT count(*) INTO v_held
    FROM (
        SELECT j.queue
        FROM tenure.job AS j
        WHERE j.state IN ('leased', 'running') AND j.lease_until > '-infinity'
        ORDER BY j.lease_until
        LIMIT p_cap
    ) AS h
    WHERE h.queue = p_queue.name;
    RETURN json_build_array(
        p_queue.name, least(p_cap, v_ready + v_late), v_held, tenure.to_us(least(v_oldest, v_late_at)), p_queue.paused_at IS NOT NULL
    );
END
$$;

-- oldest_head: the earliest run_at at the head of each rank, list by list: a queue has one for each limiter, and as many again for jobs that
-- must run alone. Each list and each rank is found by one look behind the one before. The first thousand lists are looked at, and a
-- thousand ranks in all, divided among them; of each list at least the first.
CREATE OR REPLACE FUNCTION tenure.oldest_head(p_queue text) RETURNS timestamptz
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    WITH RECURSIVE list AS (
        SELECT f.is_alone, f.limiter, f.rank, f.run_at, 1 AS nth
        FROM (
            SELECT j.suspicion >= 2 AS is_alone, coalesce(j.limiter, '') AS limiter, j.rank, j.run_at
            FROM tenure.job AS j
            WHERE j.queue = p_queue AND j.state = 'queued' AND j.is_due
            ORDER BY j.suspicion >= 2, coalesce(j.limiter, ''), j.rank, j.run_at
            LIMIT 1
        ) AS f
        UNION ALL
        SELECT n.is_alone, n.limiter, n.rank, n.run_at, l.nth + 1
        FROM list AS l
        CROSS JOIN LATERAL (
            SELECT j.suspicion >= 2 AS is_alone, coalesce(j.limiter, '') AS limiter, j.rank, j.run_at
            FROM tenure.job AS j
            WHERE j.queue = p_queue AND (j.suspicion >= 2, coalesce(j.limiter, '')) > (l.is_alone, l.limiter)
                AND j.state = 'queued' AND j.is_due
            ORDER BY j.suspicion >= 2, coalesce(j.limiter, ''), j.rank, j.run_at
            LIMIT 1
        ) AS n
        WHERE l.nth < 1000
    ), head AS (
        SELECT l.is_alone, l.limiter, l.rank, l.run_at, 1 AS nth FROM list AS l
        UNION ALL
        SELECT h.is_alone, h.limiter, n.rank, n.run_at, h.nth + 1
        FROM head AS h
        CROSS JOIN LATERAL (
            SELECT j.rank, j.run_at
            FROM tenure.job AS j
            WHERE j.queue = p_queue AND (j.suspicion >= 2) = h.is_alone AND coalesce(j.limiter, '') = h.limiter AND j.rank > h.rank
                AND j.state = 'queued' AND j.is_due
            ORDER BY j.rank, j.run_at
            LIMIT 1
        ) AS n
        WHERE h.nth < (SELECT 1000 / count(*) FROM list)
    )
    SELECT min(h.run_at) FROM head AS h
$$;

-- read_gauges: {"cap"} → {"at", "queues": [[queue, ready, held, oldest_ready_at, is_paused], …], "delayed", "leases_run_out",
-- "dead_letters": {triage: n}}.
CREATE OR REPLACE FUNCTION tenure.read_gauges(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_cap bigint := tenure.gauge_cap(p_request);
BEGIN
    RETURN json_build_object(
        'at', tenure.to_us(v_now),
        'queues', (SELECT json_agg(tenure.load_of(q, v_now, v_cap) ORDER BY q.name COLLATE "C") FROM tenure.queue AS q),
        'delayed', (
            SELECT count(*)
            FROM (
                SELECT 1
                FROM tenure.job AS j
                WHERE NOT j.is_due AND j.state IN ('queued', 'waiting') AND j.state = 'queued' AND j.run_at > v_now
                ORDER BY j.run_at
                LIMIT v_cap
            ) AS d
        ),
        'leases_run_out', (
            SELECT count(*)
            FROM (
                SELECT 1
                FROM tenure.job AS j
                WHERE j.state IN ('leased', 'running') AND j.lease_until < v_now
                ORDER BY j.lease_until
                LIMIT v_cap
            ) AS o
        ),
        'dead_letters', (
            SELECT coalesce(json_object_agg(t.triage, c.n) FILTER (WHERE c.n > 0), '{}')
            FROM unnest(ARRAY['pending', 'acknowledged', 'manual_replay', 'escalated', 'closed']) AS t(triage)
            CROSS JOIN LATERAL (
                SELECT count(*) AS n
                FROM (SELECT 1 FROM tenure.dead_letter AS d WHERE d.triage = t.triage ORDER BY d.moved_at LIMIT v_cap) AS l
            ) AS c
        )
    );
END
$$;

-- read_totals: the counters. {} → [[queue, what, part, n], …]. Those of a queue that was removed are not told.
CREATE OR REPLACE FUNCTION tenure.read_totals(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(json_build_array(t.queue, t.what, t.part, t.n)
        ORDER BY t.queue COLLATE "C", t.what COLLATE "C", t.part COLLATE "C"), '[]')
    FROM tenure.metric_total AS t
    JOIN tenure.queue AS q ON q.name = t.queue
$$;

-- add_totals: add what count_minutes has just counted, from p_after until just before p_until. The most frequent of the kinds that are
-- new get the places that are left; the others are added up under ''.
-- In PL/pgSQL, which keeps its plan: an SQL function would be planned anew each minute, and planning it reads more pages than it does.
CREATE OR REPLACE FUNCTION tenure.add_totals(p_after timestamptz, p_until timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT e.queue, e.kind, e.what, count(*) AS n, sum(greatest(0, e.run_us))::bigint AS run_us, sum(greatest(0, e.wait_us))::bigint AS wait_us
        FROM (
            SELECT j.queue, j.kind::text AS kind, j.state::text AS what,
                CASE j.state WHEN 'succeeded' THEN extract(epoch FROM j.finished_at - j.claimed_at) * 1000000 END AS run_us,
                CASE j.state WHEN 'succeeded' THEN extract(epoch FROM j.claimed_at - j.run_at) * 1000000 END AS wait_us
            FROM tenure.job AS j
            WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.state IN ('succeeded', 'cancelled')
                AND j.finished_at >= p_after AND j.finished_at < p_until
            UNION ALL
            SELECT j.queue, j.kind::text, j.state::text,
                CASE j.state WHEN 'succeeded' THEN extract(epoch FROM j.finished_at - j.claimed_at) * 1000000 END,
                CASE j.state WHEN 'succeeded' THEN extract(epoch FROM j.claimed_at - j.run_at) * 1000000 END
            FROM tenure.job AS j
            WHERE j.cleaned_at IS NOT NULL AND j.state IN ('succeeded', 'cancelled') AND j.finished_at >= p_after AND j.finished_at < p_until
            UNION ALL
            SELECT d.queue, d.kind, d.state, NULL, NULL
            FROM tenure.dead_letter AS d
            WHERE d.triage IN ('pending', 'acknowledged', 'manual_replay', 'escalated', 'closed')
                AND d.moved_at >= p_after AND d.moved_at < p_until
        ) AS e
        JOIN tenure.queue AS q ON q.name = e.queue
        GROUP BY e.queue, e.kind, e.what
    ), named AS (
        INSERT INTO tenure.metric_kind (kind)
        SELECT e.kind
        FROM ended AS e
        WHERE NOT EXISTS (SELECT 1 FROM tenure.metric_kind AS k WHERE k.kind = e.kind)
        GROUP BY e.kind
        ORDER BY sum(e.n) DESC, e.kind COLLATE "C"
        LIMIT greatest(0, 200 - (SELECT count(*) FROM tenure.metric_kind))
        RETURNING kind
    ), known AS (
        SELECT k.kind FROM tenure.metric_kind AS k
        UNION ALL
        SELECT n.kind FROM named AS n
    ), counted AS (
        SELECT e.queue, e.what, coalesce(k.kind, '') AS part, e.n
        FROM ended AS e
        LEFT JOIN known AS k ON k.kind = e.kind
        UNION ALL
        SELECT e.queue, s.what, '', s.n
        FROM ended AS e
        CROSS JOIN LATERAL (VALUES ('run_us', e.run_us), ('wait_us', e.wait_us)) AS s(what, n)
        WHERE e.what = 'succeeded'
        UNION ALL
        SELECT m.queue, s.what, '', s.n
        FROM tenure.metric AS m
        CROSS JOIN LATERAL (VALUES ('created', m.created), ('retried', m.retried), ('expired', m.expired)) AS s(what, n)
        WHERE m.minute >= p_after AND m.minute < p_until
        UNION ALL
        SELECT p.queue, p.what, p.part, p.n
        FROM tenure.metric_part AS p
        WHERE p.span = 'minute' AND p.at >= p_after AND p.at < p_until AND p.what IN ('run', 'wait')
    )
    INSERT INTO tenure.metric_total AS t (queue, what, part, n)
    SELECT c.queue, c.what, c.part, sum(c.n)
    FROM counted AS c
    GROUP BY c.queue, c.what, c.part
    HAVING sum(c.n) > 0
    ON CONFLICT (queue, what, part) DO UPDATE SET n = t.n + excluded.n;
END
$$;

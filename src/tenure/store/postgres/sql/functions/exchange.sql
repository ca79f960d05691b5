-- Exchange: settle what ended, then claim for the free slots, in one transaction. `claim` and `settle` are its two halves.

-- exchange: a worker's one call. Takes {"outcomes": as settle takes them, "claim": as claim takes it}, either may be absent.
-- Answers {"settled": …, "granted": …, "refused": {"gate", "act"}, "flow": true if it left events for tenure.sweep_flow}.
-- If a gate refuses the claim, the settling stands; with nothing to settle the refusal is raised.
-- The plan is pinned by the settings below: no statement here may ever read a table from end to end, whatever its statistics say.
--
-- The settled rows stay locked while it claims, and a heartbeat or a cancel may wait for them. So the claim must not wait for others:
-- it skips locked rows, and where PostgreSQL waits all the same (SKIP LOCKED waits when it follows a row to its updated version, and a
-- limited queue is claimed by one at a time) lock_timeout ends it before the deadlock detector looks. Then nothing is granted this time,
-- and `due_in` says to look again soon; a claim with `held` fails instead, because its answer has to be complete.
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
    IF v_outcomes IS NOT NULL THEN
        v_settled := tenure.settle_outcomes(v_outcomes, v_now);
        IF v_claim IS NULL THEN
            RETURN CASE WHEN tenure.has_flow_events()
                THEN json_build_object('settled', v_settled, 'flow', true) ELSE json_build_object('settled', v_settled) END;
        END IF;
        v_now := tenure.now();  -- the settling may have waited for rows that others held, and leases count from their grant
    END IF;
    BEGIN
        v_granted := tenure.claim_jobs(v_claim, v_now);
    EXCEPTION
        WHEN SQLSTATE 'TN002' THEN
            IF v_outcomes IS NULL THEN
                RAISE;
            END IF;
            GET STACKED DIAGNOSTICS v_detail = PG_EXCEPTION_DETAIL;
            RETURN json_build_object('settled', v_settled, 'refused', v_detail::json, 'flow', tenure.has_flow_events());
        WHEN lock_not_available THEN
            IF v_claim -> 'held' IS NOT NULL THEN
                RAISE;
            END IF;
            v_granted := json_build_object('lines', '[]'::json, 'again', 0, 'expired', NULL, 'due', NULL, 'due_in', 0.1);
    END;
    IF tenure.has_flow_events() THEN
        RETURN json_build_object('settled', v_settled, 'granted', v_granted, 'flow', true);
    ELSIF v_outcomes IS NULL THEN
        RETURN json_build_object('granted', v_granted);
    END IF;
    RETURN json_build_object('settled', v_settled, 'granted', v_granted);
END
$$;

CREATE OR REPLACE FUNCTION tenure.claim(p_claim json) RETURNS json
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT tenure.exchange(json_build_object('claim', p_claim)) -> 'granted' $$;

CREATE OR REPLACE FUNCTION tenure.settle(p_outcomes json) RETURNS json
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT tenure.exchange(json_build_object('outcomes', p_outcomes)) -> 'settled' $$;

-- claim_jobs: the claiming half. Answers {"lines": [[queue, until_us, started, [grant, …]], …], "again", "expired", "due", "taken",
-- "due_in"}; `taken`: [id, token, state, run_at_us] of jobs whose lease had run out; the first `again` grants are those granted again.
-- `due_in`: in how many seconds the next job of these queues comes due, if that is soon and fewer were granted than asked for; so the
-- worker need not poll for it.
--
-- Order of work: gates, then leases that ran out are taken back, then jobs that came due are made claimable; then jobs that this worker
-- holds without knowing it, one job that must run alone, and new work.
-- p_claim: {"worker", "queues", "limit", "kinds", "affinity", "lease", "strict", "held", "marks"}.
-- `marks` is where the last claims of this caller stopped: {"expired": us, "due": us, "queues": {name: [[rank, run_at_us, id], …]}}; the
-- first two are in each answer, the others are the last grant of each rank (jobs with a limiter or to run alone apart). Up to a mark
-- everything was looked at before, so the look starts behind it: entries of the index which a long transaction keeps alive are then not
-- walked again and again. What is absent asks for a full look.
-- p_is_loop: a worker's loop asks, which the gates named `worker` may stop; a profile's own claim function asks without.
--
-- A small claim costs what its statements cost to begin, so there are few of them: what is rare is asked for in one (claim_needs).
CREATE OR REPLACE FUNCTION tenure.claim_jobs(p_claim json, p_now timestamptz, p_is_loop boolean DEFAULT true) RETURNS json
LANGUAGE plpgsql
SET lock_timeout = '500ms'
AS $$
DECLARE
    v_claim record;
    v_left integer;
    v_expired_us bigint;
    v_open record;
    v_queues tenure.queue[];
    -- v_limiters: beside v_queues, the limiter whose jobs are looked at there; null or absent for jobs without one.
    v_limiters text[] := '{}';
    v_full tenure.queue[];
    v_full_limiters text[];
    v_needs record;
    v_limited record;
    v_opens timestamptz;
    v_quota integer[];
    v_want integer;
    v_again integer := 0;
    v_part record;
    v_lines json[] := '{}';
    v_expired json[] := '{}';
    v_due timestamptz := p_now;
    v_due_in double precision;
BEGIN
    SELECT c.worker, c.queues, c."limit", c.kinds, c.affinity, c.lease, coalesce(c.strict, false) AS is_strict, c.held, c.marks
    INTO v_claim
    FROM json_to_record(p_claim) AS c(
        worker text, queues text[], "limit" integer, kinds text[], affinity text[], lease double precision, strict boolean, held json, marks json);
    v_claim.worker := tenure.worker_name(v_claim.worker);
    v_left := v_claim."limit";
    IF coalesce(v_left, -1) < 0 THEN
        RAISE EXCEPTION 'limit is %; a claim takes a number from 0 up.', v_left USING ERRCODE = 'TN007';
    END IF;
    v_open := tenure.open_queues(coalesce(v_claim.queues, '{}'), v_claim.lease, CASE WHEN p_is_loop THEN v_claim.worker END);
    v_queues := v_open.queues;
    -- A claim with `held` repeats one whose reply was lost, and that one may still be running here: it waits for its end, because rows
    -- that it has locked would be skipped and so be lost to the worker.
    IF v_claim.held IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('tenure.claim:' || v_claim.worker, 0));
    ELSE
        PERFORM pg_advisory_xact_lock_shared(hashtextextended('tenure.claim:' || v_claim.worker, 0));
    END IF;
    v_expired_us := (v_claim.marks ->> 'expired')::bigint;
    v_needs := tenure.claim_needs(v_queues, p_now, tenure.from_us(v_expired_us), tenure.from_us((v_claim.marks ->> 'due')::bigint));
    IF v_needs.has_expired OR v_needs.next_due <= p_now THEN
        v_expired := tenure.expire_leases(p_now, tenure.from_us(v_expired_us), 1000);
        v_due := tenure.promote_due(p_now, tenure.from_us((v_claim.marks ->> 'due')::bigint), 1000);
        v_needs := tenure.claim_needs(v_queues, p_now, p_now, v_due);  -- there may be more for this claim now
    END IF;
    IF v_claim.held IS NOT NULL THEN
        v_part := tenure.grant_again(v_claim.worker, v_claim.held, v_left, v_claim.lease, p_now);
        v_lines := v_part.lines;
        v_again := v_part.granted;
        v_left := v_left - v_again;
    END IF;

    -- Limited queues are claimed by one worker at a time. Their locks are taken in the order of names, before anything is picked.
    IF v_open.is_limited AND v_left > 0 THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('tenure.queue:' || n.name, 0))
        FROM (
            SELECT q.name FROM unnest(v_queues) AS q
            WHERE q.concurrency IS NOT NULL OR q.concurrency_per_key IS NOT NULL
            ORDER BY q.name
        ) AS n;
    END IF;

    IF v_left > 0 THEN
        IF v_needs.has_alone AND tenure.may_run_alone(v_claim.worker) THEN
            v_limited := tenure.open_limiters(v_queues, true, NULL, p_now);
            v_opens := v_limited.opens_at;
            v_quota := tenure.share_out(v_queues || v_limited.queues, array_fill(NULL::text, ARRAY[cardinality(v_queues)]) || v_limited.limiters,
                1, v_claim.kinds, v_open.closed_kinds, v_claim.affinity, true, v_claim.is_strict);
            FOR i IN 1 .. cardinality(v_quota) LOOP
                CONTINUE WHEN v_quota[i] = 0;
                v_part := tenure.grant_marked((v_queues || v_limited.queues)[i], v_limited.limiters[i - cardinality(v_queues)], v_claim.worker, 1,
                    v_claim.kinds, v_open.closed_kinds, v_claim.affinity, v_claim.lease, p_now, NULL, true);
                v_lines := v_lines || v_part.lines;
                v_left := v_left - v_part.granted;
            END LOOP;
        END IF;
        IF v_needs.has_limited AND v_left > 0 THEN
            -- The next jobs stand in the lists that begin first, unless a filter leaves some of them out; a few more lists, because other
            -- claims may hold what stands there.
            v_limited := tenure.open_limiters(v_queues, false, CASE
                WHEN num_nonnulls(v_claim.kinds, v_open.closed_kinds, v_claim.affinity) = 0 AND NOT v_open.is_limited
                    AND (NOT v_claim.is_strict OR cardinality(v_queues) = 1) THEN v_left + 100
            END, p_now);
            v_opens := least(v_opens, v_limited.opens_at);
            v_limiters := array_fill(NULL::text, ARRAY[cardinality(v_queues)]) || v_limited.limiters;
            v_queues := v_queues || v_limited.queues;
        END IF;
    END IF;
    -- A queue at its limit gives less than its share, and what it could not give is shared out among the others.
    LOOP
        v_quota := CASE WHEN cardinality(v_queues) > 1 AND (NOT v_claim.is_strict OR cardinality(v_limiters) > 0)
            THEN tenure.share_out(v_queues, v_limiters, v_left, v_claim.kinds, v_open.closed_kinds, v_claim.affinity, false, v_claim.is_strict) END;
        v_full := '{}';
        v_full_limiters := '{}';
        FOR i IN 1 .. cardinality(v_queues) LOOP
            v_want := least(v_left, coalesce(v_quota[i], v_left));
            IF v_want > 0 THEN
                v_part := tenure.grant_marked(v_queues[i], v_limiters[i], v_claim.worker, v_want, v_claim.kinds, v_open.closed_kinds,
                    v_claim.affinity, v_claim.lease, p_now,
                    CASE WHEN v_limiters[i] IS NULL THEN v_claim.marks -> 'queues' -> (v_queues[i]).name END, false);
                v_lines := v_lines || v_part.lines;
                v_left := v_left - v_part.granted;
                v_opens := least(v_opens, v_part.opens_at);
                CONTINUE WHEN v_part.granted < v_want;
            END IF;
            v_full := v_full || v_queues[i];
            v_full_limiters := v_full_limiters || v_limiters[i];
        END LOOP;
        EXIT WHEN v_left <= 0 OR cardinality(v_full) IN (0, cardinality(v_queues));
        v_queues := v_full;
        v_limiters := v_full_limiters;
    END LOOP;
    IF v_left > 0 THEN
        IF v_needs.next_due IS NOT NULL THEN
            v_due_in := tenure.due_in(v_claim.queues, p_now);
        END IF;
        IF v_opens <= p_now + tenure.soon() THEN
            v_due_in := least(v_due_in, extract(epoch FROM v_opens - p_now));
        END IF;
    END IF;
    RETURN json_build_object(
        'lines', array_to_json(v_lines),
        'again', v_again,
        'expired', CASE WHEN cardinality(v_expired) < 1000 THEN tenure.to_us(p_now) ELSE v_expired_us END,
        'due', tenure.to_us(v_due),
        'taken', CASE WHEN cardinality(v_expired) > 0 THEN array_to_json(v_expired) END,
        'due_in', v_due_in);
END
$$;

-- due_in: in how many seconds the next job of these queues comes due; NULL if that is more than soon(), or hidden behind a hundred jobs
-- of other queues that come due before it.
CREATE OR REPLACE FUNCTION tenure.due_in(p_queues text[], p_now timestamptz) RETURNS double precision
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN (
        SELECT extract(epoch FROM min(d.run_at) - p_now)
        FROM (
            SELECT j.run_at, j.queue
            FROM tenure.job AS j
            WHERE NOT j.is_due AND j.state IN ('queued', 'waiting') AND j.run_at > p_now AND j.run_at <= p_now + tenure.soon()
            ORDER BY j.run_at
            LIMIT 100
        ) AS d
        WHERE d.queue = ANY (p_queues)
    );
END
$$;

-- soon: workers are woken for jobs that come due within this time. As long as an idle worker sleeps between two polls;
-- tenure.store.contract has the same number.
CREATE OR REPLACE FUNCTION tenure.soon() RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT interval '5 seconds' $$;

-- open_queues: the rows of the queues that may be claimed from now, in the order asked for; whether one of them limits how many are held;
-- and the kinds whose gate is closed, null if none is. Paused queues are left out, and so are those behind a closed gate of their own or of
-- their profile, unless that is all of them. Refuses unknown queues, a closed gate that stands before every queue, and a lease out of
-- bounds. p_worker: whose loop asks; null where none does.
CREATE OR REPLACE FUNCTION tenure.open_queues(
    p_names text[], p_lease double precision, p_worker text, OUT queues tenure.queue[], OUT is_limited boolean, OUT closed_kinds text[]
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_queue tenure.queue;
    v_name text;
    v_closed text[];
    v_before_all text[] := CASE WHEN p_worker IS NULL THEN ARRAY['master'] ELSE ARRAY['master', 'worker', 'worker:' || p_worker] END;
    v_gate text;
    v_shut text;
    v_is_refused boolean := true;
BEGIN
    queues := '{}';
    is_limited := false;
    IF cardinality(p_names) = 0 THEN
        RAISE EXCEPTION 'A claim must name at least one queue. Nothing was claimed.' USING ERRCODE = 'TN007';
    END IF;
    IF NOT tenure.may('reap') THEN  -- it has no role of ours: it is bound to queues
        PERFORM tenure.refuse_unbound(p_names);
    END IF;
    SELECT array_agg(g.name), array_agg(substr(g.name, 6)) FILTER (WHERE g.name LIKE 'kind:%')
    INTO v_closed, closed_kinds
    FROM tenure.gate AS g
    WHERE NOT g.is_open;
    FOREACH v_name IN ARRAY p_names LOOP
        SELECT * INTO v_queue FROM tenure.queue AS q WHERE q.name = v_name;
        IF NOT FOUND THEN
            PERFORM tenure.refuse_unknown_queue(v_name);
        END IF;
        IF p_lease IS NOT NULL AND (p_lease <= 0 OR p_lease > v_queue.lease_max_seconds) THEN
            RAISE EXCEPTION 'lease_seconds is %; it must be positive and at most % in queue %.',
                p_lease, v_queue.lease_max_seconds, quote_literal(v_name) USING ERRCODE = 'TN007';
        END IF;
        IF v_closed IS NOT NULL THEN
            IF v_closed && v_before_all THEN
                PERFORM tenure.refuse_gate((SELECT min(c.name) FROM unnest(v_closed) AS c(name) WHERE c.name = ANY (v_before_all)), 'claim');
            END IF;
            SELECT min(c.name) INTO v_gate
            FROM unnest(v_closed) AS c(name)
            WHERE c.name IN (v_queue.profile || '.master', 'queue:' || v_name)
                OR c.name = v_queue.profile || '.worker' AND p_worker IS NOT NULL;
            IF v_gate IS NOT NULL THEN
                v_shut := coalesce(v_shut, v_gate);
                CONTINUE;
            END IF;
        END IF;
        v_is_refused := false;
        IF v_queue.paused_at IS NULL THEN
            queues := queues || v_queue;
            is_limited := is_limited OR num_nonnulls(v_queue.concurrency, v_queue.concurrency_per_key) > 0;
        END IF;
    END LOOP;
    IF v_shut IS NOT NULL AND v_is_refused THEN
        PERFORM tenure.refuse_gate(v_shut, 'claim');
    END IF;
END
$$;

-- claim_heads: the first p_limit claimable jobs of each queue and limiter (null: without one), by their place in the two arrays. Looks
-- without locking. It has no settings of its own, so that it becomes part of the statement that calls it.
CREATE OR REPLACE FUNCTION tenure.claim_heads(
    p_queues tenure.queue[], p_limiters text[], p_limit integer, p_kinds text[], p_closed_kinds text[], p_affinity text[], p_is_alone boolean
) RETURNS TABLE (nth integer, rank bigint, run_at timestamptz, id uuid)
LANGUAGE sql STABLE
AS $$
    SELECT n.nth, head.rank, head.run_at, head.id
    FROM generate_series(1, cardinality(p_queues)) AS n(nth)
    CROSS JOIN LATERAL (
        SELECT j.rank, j.run_at, j.id
        FROM tenure.job AS j
        WHERE j.queue = (p_queues[n.nth]).name AND (j.suspicion >= 2) = p_is_alone
            AND coalesce(j.limiter, '') = coalesce(p_limiters[n.nth], '') AND j.state = 'queued' AND j.is_due
            AND (p_kinds IS NULL OR j.kind = ANY (p_kinds)) AND (p_closed_kinds IS NULL OR NOT j.kind = ANY (p_closed_kinds))
            AND (p_affinity IS NULL OR j.affinity_key = ANY (p_affinity)
                OR (j.affinity_key IS NULL AND array_position(p_affinity, NULL) IS NOT NULL))
        ORDER BY j.rank, j.run_at, j.id
        LIMIT p_limit
    ) AS head
$$;

-- share_out: how many jobs each queue should give, if the next p_limit were taken by rank over all of them, or by the order of the
-- queues. The claim then takes that many from each, skipping what others hold. With limiters one queue has several lists, and its limit on
-- how many may be held counts for all of them: their share is cut to it here, by rank.
CREATE OR REPLACE FUNCTION tenure.share_out(
    p_queues tenure.queue[], p_limiters text[], p_limit integer, p_kinds text[], p_closed_kinds text[], p_affinity text[], p_is_alone boolean, p_is_strict boolean
) RETURNS integer[]
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF cardinality(p_limiters) > 0 THEN
        RETURN (
            WITH lists AS MATERIALIZED (
                SELECT n.nth, min(n.nth) OVER (PARTITION BY (p_queues[n.nth]).name) AS queue_nth, (p_queues[n.nth]).concurrency - (
                    SELECT count(*) FROM tenure.job AS j
                    WHERE j.state IN ('leased', 'running') AND j.lease_until > '-infinity' AND j.queue = (p_queues[n.nth]).name
                        AND (p_queues[n.nth]).concurrency IS NOT NULL
                ) AS room
                FROM generate_series(1, cardinality(p_queues)) AS n(nth)
            ), heads AS MATERIALIZED (
                SELECT h.nth, l.queue_nth, l.room, h.rank, h.run_at, h.id,
                    row_number() OVER (PARTITION BY l.queue_nth ORDER BY h.rank, h.run_at, h.id) AS place
                FROM tenure.claim_heads(p_queues, p_limiters, p_limit, p_kinds, p_closed_kinds, p_affinity, p_is_alone) AS h
                JOIN lists AS l ON l.nth = h.nth
            ), best AS MATERIALIZED (
                SELECT h.nth
                FROM heads AS h
                WHERE h.room IS NULL OR h.place <= h.room
                ORDER BY CASE WHEN p_is_strict THEN h.queue_nth END, h.rank, h.run_at, h.id
                LIMIT p_limit
            )
            SELECT array_agg((SELECT count(*)::integer FROM best AS b WHERE b.nth = l.nth) ORDER BY l.nth) FROM lists AS l
        );
    END IF;
    RETURN (
        WITH best AS MATERIALIZED (
            SELECT h.nth
            FROM tenure.claim_heads(p_queues, p_limiters, p_limit, p_kinds, p_closed_kinds, p_affinity, p_is_alone) AS h
            ORDER BY CASE WHEN p_is_strict THEN h.nth END, h.rank, h.run_at, h.id
            LIMIT p_limit
        )
        SELECT array_agg((SELECT count(*)::integer FROM best AS b WHERE b.nth = n.nth) ORDER BY n.nth)
        FROM generate_series(1, cardinality(p_queues)) AS n(nth)
    );
END
$$;

-- claim_needs: what a claim has to do beside picking, which mostly is nothing: whether a lease has run out since p_expired_after; when the
-- first job comes due, if it is within soon(), from p_due_after on; whether one of these queues has a job that must run alone, and whether
-- one has a job with a limiter. One statement, a look at one end of an index each.
--
-- The comparisons by row say which part of a queue's list they mean in the columns of job_claim_idx. `(suspicion >= 2) = false` would not:
-- the planner makes `suspicion < 2` of it, which is no column of the index, and walks the whole list.
CREATE OR REPLACE FUNCTION tenure.claim_needs(
    p_queues tenure.queue[], p_now timestamptz, p_expired_after timestamptz, p_due_after timestamptz,
    OUT has_expired boolean, OUT next_due timestamptz, OUT has_alone boolean, OUT has_limited boolean
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_cutoff timestamptz := tenure.expiry_cutoff(p_now);
    v_has_special boolean;
BEGIN
    has_alone := false;
    has_limited := false;
    SELECT
        EXISTS (
            SELECT 1 FROM tenure.job AS j
            WHERE j.state IN ('leased', 'running') AND j.lease_until <= v_cutoff AND j.lease_until > coalesce(p_expired_after, '-infinity')
        ),
        (
            SELECT j.run_at FROM tenure.job AS j
            WHERE NOT j.is_due AND j.state IN ('queued', 'waiting')
                AND j.run_at <= p_now + tenure.soon() AND j.run_at >= coalesce(p_due_after, '-infinity')
            ORDER BY j.run_at
            LIMIT 1
        ),
        EXISTS (
            SELECT 1
            FROM unnest(p_queues) AS q
            CROSS JOIN LATERAL (
                SELECT 1 FROM tenure.job AS j
                WHERE j.queue = q.name AND (j.suspicion >= 2, coalesce(j.limiter, '')) > (false, '') AND j.state = 'queued' AND j.is_due
                LIMIT 1
            ) AS found
        )
    INTO has_expired, next_due, v_has_special;
    IF v_has_special THEN
        SELECT bool_or(j.is_alone), bool_or(j.is_limited) INTO has_alone, has_limited
        FROM unnest(p_queues) AS q
        CROSS JOIN LATERAL (
            SELECT
                EXISTS (
                    SELECT 1 FROM tenure.job AS j WHERE j.queue = q.name AND j.suspicion >= 2 AND j.state = 'queued' AND j.is_due
                ) AS is_alone,
                EXISTS (
                    SELECT 1 FROM tenure.job AS j
                    WHERE j.queue = q.name AND (j.suspicion >= 2, coalesce(j.limiter, '')) > (false, '')
                        AND (j.suspicion >= 2, coalesce(j.limiter, '')) < (true, '') AND j.state = 'queued' AND j.is_due
                ) AS is_limited
        ) AS j;
    END IF;
END
$$;

-- may_run_alone: whether the worker holds no job that must run alone. The worker's lock, taken only where such a job is due, keeps two
-- exchanges of one worker from taking one each.
CREATE OR REPLACE FUNCTION tenure.may_run_alone(p_worker text) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('tenure.alone:' || p_worker, 0));
    RETURN NOT EXISTS (
        SELECT 1 FROM tenure.job AS j WHERE j.lease_owner = p_worker AND j.state IN ('leased', 'running') AND j.suspicion >= 2);
END
$$;

-- grant_marked: grant up to p_limit jobs of one queue and limiter: behind the marks of the last claim, rank by rank, then a full look for
-- the rest. Of a limiter no more than it has room for; opens_at then says when it has room again.
CREATE OR REPLACE FUNCTION tenure.grant_marked(
    p_queue tenure.queue, p_limiter text, p_worker text, p_limit integer, p_kinds text[], p_closed_kinds text[], p_affinity text[], p_lease double precision,
    p_now timestamptz, p_marks json, p_is_alone boolean, OUT lines json[], OUT granted integer, OUT opens_at timestamptz
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_marks json[] := '{}';
    v_mark json;
    v_part record;
    v_until timestamptz := p_now + coalesce(p_lease, p_queue.lease_seconds) * interval '1 second';
    v_limit integer := p_limit;
    v_room record;
BEGIN
    lines := '{}';
    granted := 0;
    IF p_limiter IS NOT NULL THEN
        v_room := tenure.limiter_room(p_limiter, p_now);
        v_limit := least(p_limit, v_room.room);
        opens_at := CASE WHEN v_limit < p_limit THEN coalesce(v_room.opens_at, p_now) END;
    END IF;
    IF p_marks IS NOT NULL THEN
        v_marks := ARRAY(SELECT m.value FROM json_array_elements(p_marks) AS m ORDER BY (m.value ->> 0)::bigint);
    END IF;
    FOREACH v_mark IN ARRAY v_marks || NULL::json LOOP  -- the last is the full look
        v_part := tenure.grant_some(
            p_queue, p_limiter, p_worker, v_limit - granted, p_kinds, p_closed_kinds, p_affinity, v_until, p_now,
            coalesce((v_mark ->> 0)::bigint, -9223372036854775808), coalesce(tenure.from_us((v_mark ->> 1)::bigint), '-infinity'),
            coalesce((v_mark ->> 2)::uuid, '00000000-0000-0000-0000-000000000000'), coalesce((v_mark ->> 0)::bigint, 9223372036854775807), p_is_alone);
        IF v_part.granted > 0 THEN
            granted := granted + v_part.granted;
            lines := lines || json_build_array(p_queue.name, tenure.to_us(v_until), p_queue.start_on_claim, v_part.grants);
        END IF;
        EXIT WHEN granted >= v_limit;
    END LOOP;
    IF p_limiter IS NOT NULL AND granted > 0 THEN
        PERFORM tenure.take_from_limiters(p_limiter, granted, p_now);
        IF v_limit < p_limit THEN
            v_room := tenure.limiter_room(p_limiter, p_now);
            opens_at := v_room.opens_at;
        END IF;
    END IF;
END
$$;

-- grant_some: pick the next claimable jobs of one queue, in order, and grant them. The one pick, and the one grant of new work.
--
-- Invariants: a row is granted by the claim that locks it first, others skip it; token rises here and nowhere else; the attempt is
-- counted now, so a job that kills its worker spends its budget all the same.
-- Rows are found by (queue, alone or not, limiter, rank, run_at, id), in that order, on an index that holds nothing but claimable rows: behind
-- (p_rank, p_run_at, p_id), up to p_last_rank. A row that is locked stays where it is, so it is written there without another lookup; one
-- that another transaction moved while its lock was waited for is not seen there by this statement, and found by the next round.
-- Under a limit on how many jobs of the queue, or with one concurrency key, may be held at once, the caller holds the queue's lock until
-- the commit, so counts cannot cross. Jobs of a key that has no room are left out, and the look goes on without that key.
CREATE OR REPLACE FUNCTION tenure.grant_some(
    p_queue tenure.queue, p_limiter text, p_worker text, p_limit integer, p_kinds text[], p_closed_kinds text[], p_affinity text[], p_until timestamptz, p_now timestamptz,
    p_rank bigint, p_run_at timestamptz, p_id uuid, p_last_rank bigint, p_is_alone boolean,
    OUT grants json, OUT granted integer
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_login text := tenure.login();
    v_room integer := p_limit;
    v_held json := '{}';
    v_full text[];
    v_part record;
    v_ids uuid[] := '{}';
    v_grants json[] := '{}';
BEGIN
    granted := 0;
    LOOP
        IF p_queue.concurrency IS NOT NULL THEN
            SELECT least(p_limit - granted, p_queue.concurrency - count(*)) INTO v_room
            FROM tenure.job AS j
            WHERE j.state IN ('leased', 'running') AND j.lease_until > '-infinity' AND j.queue = p_queue.name;
        END IF;
        EXIT WHEN v_room <= 0;
        IF p_queue.concurrency_per_key IS NOT NULL THEN
            SELECT coalesce(json_object_agg(h.key, h.jobs), '{}'), array_agg(h.key) FILTER (WHERE h.jobs >= p_queue.concurrency_per_key)
            INTO v_held, v_full
            FROM (
                SELECT j.concurrency_key AS key, count(*) AS jobs
                FROM tenure.job AS j
                WHERE j.state IN ('leased', 'running') AND j.lease_until > '-infinity' AND j.queue = p_queue.name
                    AND j.concurrency_key IS NOT NULL
                GROUP BY j.concurrency_key
            ) AS h;
        END IF;
        WITH picked AS MATERIALIZED (
            SELECT j.ctid AS at, j.id, j.rank, j.run_at, j.concurrency_key
            FROM tenure.job AS j
            WHERE j.queue = p_queue.name AND (j.suspicion >= 2) = p_is_alone AND coalesce(j.limiter, '') = coalesce(p_limiter, '')
                AND j.state = 'queued' AND j.is_due
                AND (j.rank, j.run_at, j.id) > (p_rank, p_run_at, p_id) AND j.rank <= p_last_rank
                AND (p_kinds IS NULL OR j.kind = ANY (p_kinds)) AND (p_closed_kinds IS NULL OR NOT j.kind = ANY (p_closed_kinds))
                AND (p_affinity IS NULL OR j.affinity_key = ANY (p_affinity)
                    OR (j.affinity_key IS NULL AND array_position(p_affinity, NULL) IS NOT NULL))
                AND (v_full IS NULL OR j.concurrency_key IS NULL OR NOT j.concurrency_key = ANY (v_full))
            ORDER BY j.rank, j.run_at, j.id
            LIMIT v_room
            FOR UPDATE SKIP LOCKED
        ), allowed AS MATERIALIZED (
            SELECT p.at
            FROM (
                SELECT c.at, c.concurrency_key,
                    row_number() OVER (PARTITION BY c.concurrency_key ORDER BY c.rank, c.run_at, c.id) AS nth
                FROM picked AS c
            ) AS p
            WHERE p_queue.concurrency_per_key IS NULL OR p.concurrency_key IS NULL
                OR p.nth + coalesce((v_held ->> p.concurrency_key)::bigint, 0) <= p_queue.concurrency_per_key
        ), taken AS (
            UPDATE tenure.job AS j
            SET state = CASE WHEN p_queue.start_on_claim THEN 'running' ELSE 'leased' END,
                token = j.token + 1,
                attempt = j.attempt + 1,
                lease_owner = p_worker,
                lease_login = v_login,
                lease_until = p_until,
                claimed_at = p_now,
                started_at = CASE WHEN p_queue.start_on_claim THEN coalesce(j.started_at, p_now) ELSE j.started_at END,
                updated_at = p_now
            FROM allowed AS a
            WHERE j.ctid = a.at
            RETURNING j.rank, j.run_at, j.id, tenure.grant_line(j) AS line
        )
        SELECT (SELECT count(*) FROM picked) AS picked, count(*) AS jobs, array_agg(t.id) AS ids,
            array_agg(t.line ORDER BY t.rank, t.run_at, t.id) AS lines
        INTO v_part
        FROM taken AS t;
        granted := granted + v_part.jobs;
        v_ids := v_ids || v_part.ids;
        v_grants := v_grants || v_part.lines;
        v_room := p_limit - granted;
        EXIT WHEN v_part.jobs = v_part.picked OR v_room <= 0;
    END LOOP;
    grants := array_to_json(v_grants);
    IF p_queue.events AND granted > 0 THEN
        PERFORM tenure.tell('claimed', v_ids, p_now);
        IF p_queue.start_on_claim THEN
            PERFORM tenure.tell('started', v_ids, p_now);
        END IF;
    END IF;
END
$$;

-- grant_again: jobs leased to this worker that it does not know of, because the reply to its claim was lost. Same token, and a lease that
-- begins anew.
CREATE OR REPLACE FUNCTION tenure.grant_again(
    p_worker text, p_held json, p_limit integer, p_lease double precision, p_now timestamptz, OUT lines json[], OUT granted integer
)
LANGUAGE sql
AS $$
    WITH unknown AS MATERIALIZED (
        SELECT j.id
        FROM tenure.job AS j
        WHERE j.state IN ('leased', 'running') AND j.lease_owner = p_worker AND j.lease_login = tenure.login()
            AND j.lease_until > tenure.expiry_cutoff(p_now)
            AND NOT j.id IN (SELECT tenure.as_uuid(k.id) FROM json_array_elements_text(p_held) AS k(id))
        ORDER BY j.rank, j.run_at, j.id
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE tenure.job AS j
        SET lease_until = greatest(j.lease_until, p_now + least(coalesce(p_lease, q.lease_seconds), q.lease_max_seconds) * interval '1 second'),
            updated_at = p_now
        FROM unknown AS u, tenure.queue AS q
        WHERE j.id = u.id AND q.name = j.queue
        RETURNING j.rank, j.run_at, j.id,
            json_build_array(j.queue, tenure.to_us(j.lease_until), j.state = 'running', json_build_array(tenure.grant_line(j))) AS line
    )
    SELECT coalesce(array_agg(t.line ORDER BY t.rank, t.run_at, t.id), '{}'), count(*)::integer FROM taken AS t
$$;

-- grant_line: what a worker gets to know of a job: [id, kind, token, attempt, max_attempts, payload, priority, crashes, rank, run_at,
-- the rarely set columns or null, suspicion, {"steps": [step], "more"} or null for a job without steps].
CREATE OR REPLACE FUNCTION tenure.grant_line(p_job tenure.job) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT json_build_array(
        (p_job).id, (p_job).kind, (p_job).token, (p_job).attempt, (p_job).max_attempts, (p_job).payload::text, (p_job).priority,
        (p_job).crashes, (p_job).rank, tenure.to_us((p_job).run_at),
        CASE WHEN num_nonnulls(
            (p_job).idempotency_key, (p_job).affinity_key, (p_job).concurrency_key, (p_job).limiter, (p_job).source_ref, (p_job).target_ref,
            (p_job).payload_ref, (p_job).actor, (p_job).created_by_user_id, (p_job).requested_by_user_id, (p_job).tenant,
            (p_job).workflow_id, (p_job).parent_id, (p_job).run_id, (p_job).trace, (p_job).artifacts_path, (p_job).progress::text,
            (p_job).backoff::text) > 0
        THEN json_strip_nulls(json_build_object(
            'key', (p_job).idempotency_key, 'affinity_key', (p_job).affinity_key, 'concurrency_key', (p_job).concurrency_key, 'limiter', (p_job).limiter,
            'source_ref', (p_job).source_ref, 'target_ref', (p_job).target_ref, 'payload_ref', (p_job).payload_ref, 'actor', (p_job).actor,
            'created_by_user_id', (p_job).created_by_user_id, 'requested_by_user_id', (p_job).requested_by_user_id,
            'tenant', (p_job).tenant, 'workflow_id', (p_job).workflow_id, 'parent_id', (p_job).parent_id, 'run_id', (p_job).run_id,
            'trace', (p_job).trace, 'artifacts_path', (p_job).artifacts_path, 'progress', tenure.readable((p_job).progress),
            'backoff', tenure.readable((p_job).backoff)))
        END,
        (p_job).suspicion,
        CASE WHEN (p_job).step_token IS NOT NULL THEN tenure.granted_steps((p_job).id) END)
$$;

-- settle_outcomes: the settling half. Answers [[id, token, state, run_at_us], …] for everything that did not end as a plain success; state
-- null says that the lease was lost and nothing was changed. Null: everything was a plain success.
--
-- Takes {"done": [{"i": id, "t": token, "r": result, "s": summary, "a": artifacts, "jobs": an enqueue request, "events": [[kind, data]],
-- "effects": [effect]}], "rest": [{"i", "t", "o": complete|fail|reject|release|suspend|stop, "e": error, "c": class, "d": seconds,
-- "w": waiting for, "l": the key of a limiter that is blocked for "d" seconds, "steps": [step], "groups": [group], …}]}. All completions end in one statement; everything else goes one by one, in order of id.
-- Invariant: only the grant that holds the lease may write. `token` rises in a claim and nowhere else, and a lease that ran out counts
-- no more, so a late worker matches no row; nor does another login, whatever id and token it gives.
-- `BETWEEN g.i AND g.i` says «equal» in words that only a lookup by key can serve: for an equality the planner may turn the join around
-- and read the whole table, if it believes it empty. A row that a heartbeat writes while we wait for its lock is looked at again as it is
-- then, so it counts if it still is ours.
CREATE OR REPLACE FUNCTION tenure.settle_outcomes(p_outcomes json, p_now timestamptz) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_cutoff timestamptz := tenure.expiry_cutoff(p_now);
    v_login text := tenure.login();
    -- Read out of the request once: every `->` reads all of it.
    v_done json := coalesce(p_outcomes -> 'done', '[]');
    v_rest json := p_outcomes -> 'rest';
    v_out record;
    v_job tenure.job;
    v_state text;
    v_ended uuid[];
    v_more uuid[];
    v_groups uuid[];
    v_tasks uuid[];
    v_workflows uuid[];
    v_durable uuid[];
    v_relieved json;
    v_blocked json[] := '{}';
    v_count integer;
    v_answers json[] := '{}';
BEGIN
    IF v_rest IS NOT NULL THEN
        PERFORM 1 FROM tenure.job AS j
        WHERE j.id IN (
            SELECT g.i FROM json_to_recordset(v_done) AS g(i uuid)
            UNION ALL SELECT g.i FROM json_to_recordset(v_rest) AS g(i uuid)
        )
        ORDER BY j.id
        FOR UPDATE;
    END IF;
    WITH given AS MATERIALIZED (
        SELECT g.i, g.t, g.r, g.s, g.a, g.jobs IS NOT NULL OR g.events IS NOT NULL OR g.effects IS NOT NULL AS has_more
        FROM json_to_recordset(v_done) AS g(i uuid, t bigint, r json, s text, a text, jobs json, events json, effects json)
        UNION ALL
        SELECT g.i, g.t, g.r, g.s, g.a, g.jobs IS NOT NULL OR g.events IS NOT NULL OR g.effects IS NOT NULL
        FROM json_to_recordset(coalesce(v_rest, '[]')) AS g(i uuid, t bigint, o text, r json, s text, a text, jobs json, events json, effects json)
        WHERE g.o = 'complete'
        ORDER BY 1
    ), ended AS (
        UPDATE tenure.job AS j
        SET state = 'succeeded',
            result = g.r,
            result_summary = g.s,
            artifacts_path = coalesce(g.a, j.artifacts_path),
            suspicion = 0,
            is_beside = false,
            lease_owner = NULL,
            lease_until = NULL,
            started_at = coalesce(j.started_at, j.claimed_at),
            finished_at = p_now,
            dedup_slot = CASE WHEN left(j.dedup_slot, 1) = 'a' THEN NULL ELSE j.dedup_slot END,
            updated_at = p_now
        FROM given AS g
        WHERE j.id BETWEEN g.i AND g.i AND j.token = g.t AND j.lease_until > v_cutoff AND j.lease_login = v_login AND j.cancel_requested_at IS NULL
        RETURNING j.id, g.has_more, j.group_id, j.workflow_id, j.step_token, j.limiter, j.claimed_at
    )
    SELECT (SELECT count(*) FROM given), array_agg(e.id), array_agg(e.id) FILTER (WHERE e.has_more),
        array_agg(e.group_id) FILTER (WHERE e.group_id IS NOT NULL),
        array_agg(e.id) FILTER (WHERE e.workflow_id IS NOT NULL), array_agg(e.workflow_id) FILTER (WHERE e.workflow_id IS NOT NULL),
        array_agg(e.id) FILTER (WHERE e.step_token IS NOT NULL),
        json_agg(json_build_array(e.limiter, e.claimed_at)) FILTER (WHERE e.limiter IS NOT NULL)
    INTO v_count, v_ended, v_more, v_groups, v_tasks, v_workflows, v_durable, v_relieved
    FROM ended AS e;
    IF v_tasks IS NOT NULL THEN
        PERFORM tenure.note_tasks(v_tasks, v_workflows);
    END IF;
    IF v_durable IS NOT NULL THEN
        PERFORM tenure.end_durable(v_durable, p_now);
    END IF;
    IF v_groups IS NOT NULL THEN
        PERFORM tenure.tell_group(g.id, 'succeeded', g.jobs) FROM (SELECT u.id, count(*)::integer AS jobs FROM unnest(v_groups) AS u(id) GROUP BY u.id) AS g;
    END IF;
    IF v_more IS NOT NULL THEN
        INSERT INTO tenure.event (at, kind, job_id, queue, data)
        SELECT p_now, e.value ->> 0, g.i, (SELECT j.queue FROM tenure.job AS j WHERE j.id = g.i), e.value -> 1
        FROM (
            SELECT d.i, d.events FROM json_to_recordset(v_done) AS d(i uuid, events json)
            UNION ALL
            SELECT r.i, r.events FROM json_to_recordset(coalesce(v_rest, '[]')) AS r(i uuid, events json)
        ) AS g
        CROSS JOIN LATERAL json_array_elements(g.events) AS e
        WHERE g.i = ANY (v_more);
    END IF;
    IF v_ended IS NOT NULL AND EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.events OR q.agent_events <> 'none') THEN
        PERFORM tenure.tell('completed', v_ended, p_now);
    END IF;
    IF v_more IS NOT NULL OR v_rest IS NOT NULL OR v_count > coalesce(cardinality(v_ended), 0) THEN
        FOR v_out IN
            SELECT g.*, coalesce(g.o, 'complete') AS move
            FROM (
                SELECT e.value FROM json_array_elements(v_done) AS e
                UNION ALL
                SELECT e.value FROM json_array_elements(coalesce(v_rest, '[]')) AS e
            ) AS e
            CROSS JOIN LATERAL json_to_record(e.value) AS g(
                i uuid, t bigint, o text, e text, c text, d double precision, w text, jobs json, effects json, steps json, groups json, l text)
            ORDER BY g.i
        LOOP
            IF v_out.move = 'complete' AND v_out.i = ANY (coalesce(v_ended, '{}'))
                AND EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.id = v_out.i AND j.token = v_out.t)
            THEN
                IF v_out.i = ANY (coalesce(v_more, '{}')) THEN
                    PERFORM tenure.follow_up(v_out.i, v_out.t, v_out.jobs, v_out.effects, p_now);
                END IF;
                CONTINUE;
            END IF;
            SELECT * INTO v_job FROM tenure.job AS j
            WHERE j.id = v_out.i AND j.token = v_out.t AND j.lease_until > v_cutoff AND j.lease_login = v_login
            FOR UPDATE;
            -- A success that could not be taken in above ends the job only where a cancel was requested. Otherwise its lease had run out then,
            -- and a heartbeat that was sent in time has extended it since.
            IF NOT FOUND OR v_out.move = 'complete' AND v_job.cancel_requested_at IS NULL THEN
                v_answers := v_answers || tenure.settled_before(v_out.i, v_out.t, v_out.move, v_out.c, v_login);
                CONTINUE;
            END IF;
            IF v_out.l IS NOT NULL THEN
                v_blocked := v_blocked || json_build_array(v_out.l, v_out.d, v_out.e);
                IF v_out.l = ANY (string_to_array(v_job.limiter, ',')) THEN
                    v_out.d := NULL;  -- The block alone holds it back, and it keeps its place.
                END IF;
            ELSIF v_out.move = 'release' AND v_out.c IS NULL AND v_job.limiter IS NOT NULL THEN
                v_blocked := v_blocked || json_build_array(v_job.limiter);
            END IF;
            v_state := CASE WHEN v_out.move = 'suspend' AND num_nonnulls(v_out.steps, v_out.groups) > 0
                THEN tenure.park(v_job, v_out.w, v_out.d, coalesce(v_out.steps, '[]'), coalesce(v_out.groups, '[]'), p_now)
                ELSE tenure.finish(
                v_job, v_out.move, CASE WHEN v_out.move = 'release' THEN v_out.c ELSE coalesce(v_out.c, 'error') END,
                CASE v_out.move WHEN 'complete' THEN 'Completed after a cancel was requested.' ELSE v_out.e END, v_out.d, v_out.w, p_now) END;
            v_answers := v_answers || json_build_array(v_out.i, v_out.t, v_state,
                CASE WHEN v_state = 'queued' THEN (SELECT tenure.to_us(j.run_at) FROM tenure.job AS j WHERE j.id = v_out.i) END);
        END LOOP;
    END IF;
    IF v_relieved IS NOT NULL OR cardinality(v_blocked) > 0 THEN
        PERFORM tenure.tell_limiters(v_relieved, v_blocked, p_now);
    END IF;
    RETURN CASE WHEN cardinality(v_answers) > 0 THEN array_to_json(v_answers) END;
END
$$;

-- follow_up: the jobs and effects that a completed job hands on, committed with its end. No gate is asked.
CREATE OR REPLACE FUNCTION tenure.follow_up(p_id uuid, p_token bigint, p_jobs json, p_effects json, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_effects IS NOT NULL THEN
        PERFORM tenure.put_effect(p_id, p_token, f.value, p_now) FROM json_array_elements(p_effects) AS f;
    END IF;
    IF p_jobs IS NOT NULL THEN
        PERFORM tenure.refuse_other_queues(p_id, p_jobs);
        PERFORM tenure.put_jobs(p_jobs -> 'groups', false);
    END IF;
END
$$;

-- refuse_other_queues: a job of a profile with the setting own_queue_only makes no work for other queues, neither when it ends nor as
-- children. Specification 001, section 10.
CREATE OR REPLACE FUNCTION tenure.refuse_other_queues(p_id uuid, p_jobs json) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_queue text;
    v_other text;
BEGIN
    SELECT j.queue INTO v_queue
    FROM tenure.job AS j
    JOIN tenure.profile AS p ON p.name = j.profile
    WHERE j.id = p_id AND (p.settings ->> 'own_queue_only')::boolean;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT g.queue INTO v_other FROM json_to_recordset(p_jobs -> 'groups') AS g(queue text) WHERE g.queue <> v_queue LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'Job % of % may not create work for %. Work for other agents is created by the orchestrator. Nothing was changed.',
            p_id, quote_literal(v_queue), quote_literal(v_other) USING ERRCODE = 'TN010';
    END IF;
END
$$;

-- settled_before: an outcome found no lease. If this very grant was already ended by its worker, a repeated request of the same login is
-- answered as the first one was; otherwise the lease was lost. Ends that leave no attempt row are answered from the job's own row.
CREATE OR REPLACE FUNCTION tenure.settled_before(p_id uuid, p_token bigint, p_move text, p_class text, p_login text) RETURNS json[]
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_outcome text;
    v_run_at timestamptz;
    v_state text;
BEGIN
    SELECT a.outcome, a.run_at INTO v_outcome, v_run_at FROM tenure.attempt AS a
    WHERE a.job_id = p_id AND a.token = p_token AND a.login = p_login;
    IF FOUND THEN
        v_state := CASE
            WHEN v_outcome = 'expired' OR p_move = 'complete' AND v_outcome <> 'cancelled' THEN NULL
            WHEN v_outcome IN ('retried', 'released') THEN 'queued'
            ELSE v_outcome
        END;
    ELSE
        SELECT j.state, CASE WHEN j.state = 'queued' THEN j.run_at END INTO v_state, v_run_at
        FROM tenure.job AS j
        WHERE j.id = p_id AND j.token = p_token AND j.lease_login = p_login AND j.state NOT IN ('leased', 'running')
            AND CASE p_move
                WHEN 'suspend' THEN j.state <> 'succeeded'
                WHEN 'release' THEN j.state <> 'succeeded' AND p_class IS NULL
                WHEN 'complete' THEN j.state = 'succeeded'
                ELSE false
            END;
    END IF;
    IF v_state = 'succeeded' THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY[json_build_array(p_id, p_token, v_state, CASE WHEN v_state IS NOT NULL THEN tenure.to_us(v_run_at) END)];
END
$$;

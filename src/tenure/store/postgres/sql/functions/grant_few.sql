-- claim_few: the common claim of an idle or little loaded worker: fewer than 50 jobs of one queue. Answers as claim does.
-- Where that queue is open and has no limits of its own, no lease has run out and no job has come due, nothing is to be done but to grant,
-- and it is done in few words: what such a claim costs is getting ready, statement by statement and expression by expression, on a
-- processor that has slept. So its arguments are plain, not JSON. In every other case grant_jobs does it, or with p_or_null nobody.
-- p_offers: if nothing is granted, an enqueue may hand a job over to this worker for a moment. p_offered: the answer before said that one
-- might; whatever was handed over since comes first. See hand_to_waiter.
-- p_expired and p_due are the marks of the last answer. The look begins a millisecond before them: a double is not exact, and need not be.
-- Its plans are pinned by no more settings than they need, for each takes PostgreSQL 15 some 20 of a claim's 500 microseconds: there is no
-- join here, and nothing that costs enough to be compiled. What needs the others is behind grant_rest.
CREATE OR REPLACE FUNCTION tenure.claim_few(
    p_worker text, p_queue text, p_limit integer, p_lease double precision, p_expired bigint, p_due bigint,
    p_wake boolean DEFAULT NULL, p_beat boolean DEFAULT false, p_or_null boolean DEFAULT false,
    p_offers boolean DEFAULT false, p_offered boolean DEFAULT false
) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_cutoff timestamptz := tenure.expiry_cutoff(v_now);
    -- As to_us would have it until the year 2255, and far cheaper.
    v_now_us bigint := date_part('epoch', v_now) * 1000000;
    v_expired timestamptz := coalesce(to_timestamp(p_expired::double precision / 1000000 - 0.001), '-infinity');
    v_due timestamptz := coalesce(to_timestamp(p_due::double precision / 1000000 - 0.001), '-infinity');
    v_until timestamptz;
    v_started boolean;
    v_at tid[];
    v_grants json;
    v_offered boolean := false;
    -- Locked until this claim has ended: meanwhile an enqueue passes the offer by.
    v_was_taken boolean := CASE WHEN p_offered THEN NOT tenure.lock_offer(p_worker, p_queue) ELSE false END;
BEGIN
    IF p_wake IS NOT NULL THEN  -- before the look: a job that arrives after it is notified
        PERFORM tenure.set_waiter(p_worker, json_build_array(p_queue), p_wake);
    END IF;
    -- An empty array says that there is more to do than to grant, null that there is nothing to grant. What is not a column of the queue
    -- stands beside its row and not in WHERE, as in enqueue_one.
    SELECT v_now + coalesce(p_lease, q.lease_seconds) * interval '1 second', q.start_on_claim,
        CASE WHEN p_limit BETWEEN 0 AND 49
            AND NOT v_was_taken
            AND NOT EXISTS (SELECT 1 FROM tenure.gate AS g WHERE NOT g.is_open)
            AND NOT EXISTS (
                SELECT 1
                FROM tenure.job AS j
                WHERE j.state IN ('leased', 'running') AND j.lease_until <= v_cutoff AND j.lease_until >= v_expired
            )
            AND NOT EXISTS (
                SELECT 1
                FROM tenure.job AS j
                WHERE NOT j.is_due AND j.state IN ('queued', 'waiting') AND j.run_at <= v_now AND j.run_at >= v_due
            )
        THEN (
            SELECT array_agg(p.at)
            FROM (
                SELECT j.ctid AS at
                FROM tenure.job AS j
                WHERE j.queue = p_queue AND j.state = 'queued' AND j.is_due
                ORDER BY j.rank, j.run_at, j.id
                LIMIT p_limit
                FOR UPDATE SKIP LOCKED
            ) AS p
        ) ELSE '{}' END
    INTO v_until, v_started, v_at
    FROM tenure.queue AS q
    WHERE q.name = p_queue
        AND q.paused_at IS NULL AND q.concurrency IS NULL AND q.concurrency_per_key IS NULL AND NOT q.events
        AND (p_lease IS NULL OR p_lease > 0 AND p_lease <= q.lease_max_seconds);
    IF NOT FOUND OR cardinality(v_at) = 0 THEN
        RETURN CASE WHEN NOT p_or_null THEN tenure.grant_rest(json_build_object(
            'worker', p_worker, 'queues', json_build_array(p_queue), 'limit', p_limit, 'lease', p_lease, 'beat', p_beat,
            'offered', p_offered, 'marks', json_build_object('expired', p_expired, 'due', p_due)), v_now) END;
    END IF;
    IF v_at IS NULL AND p_offers THEN
        v_offered := tenure.offer(p_worker, p_queue, p_lease, v_now, v_until);
    END IF;
    IF p_offered AND NOT v_offered THEN
        PERFORM tenure.withdraw_offer(p_worker, p_queue);
    END IF;
    IF v_at IS NULL THEN
        RETURN json_build_object('lines', '[]'::json, 'marks', '[]'::json, 'expired', v_now_us, 'due', v_now_us,
            'waiting', (SELECT count(*) FROM tenure.waiter AS w WHERE w.queue = p_queue), 'shared', NULL, 'offered', v_offered, 'age', NULL,
            'news', CASE WHEN p_beat THEN tenure.beat_idle(p_worker, v_now) END);
    END IF;
    -- The same UPDATE twice: a single job, the common case here, is not gathered and sorted, which takes 40 to 70 of some 300 microseconds.
    IF cardinality(v_at) = 1 THEN
        UPDATE tenure.job AS j
        SET state = CASE WHEN v_started THEN 'running' ELSE 'leased' END,
            token = j.token + 1,
            attempt = j.attempt + 1,
            lease_owner = p_worker,
            lease_until = v_until,
            claimed_at = v_now,
            started_at = CASE WHEN v_started THEN coalesce(j.started_at, v_now) ELSE j.started_at END,
            updated_at = v_now
        WHERE j.ctid = v_at[1]
        RETURNING json_build_array(json_build_array(
            j.id, j.kind, j.token, j.attempt, j.max_attempts, j.payload::text, j.priority, j.crashes, j.rank,
            (date_part('epoch', j.run_at) * 1000000)::bigint,  -- only for order, as in claim_queue
            CASE WHEN num_nonnulls(
                j.idempotency_key, j.affinity_key, j.concurrency_key, j.source_ref, j.target_ref, j.payload_ref, j.actor,
                j.created_by_user_id, j.requested_by_user_id, j.tenant, j.workflow_id, j.parent_id, j.run_id, j.trace,
                j.artifacts_path, j.progress) > 0
            THEN tenure.grant_extras(j) END
        )) INTO v_grants;
    ELSE
        WITH taken AS MATERIALIZED (
            UPDATE tenure.job AS j
            SET state = CASE WHEN v_started THEN 'running' ELSE 'leased' END,
                token = j.token + 1,
                attempt = j.attempt + 1,
                lease_owner = p_worker,
                lease_until = v_until,
                claimed_at = v_now,
                started_at = CASE WHEN v_started THEN coalesce(j.started_at, v_now) ELSE j.started_at END,
                updated_at = v_now
            WHERE j.ctid = ANY (v_at)
            RETURNING
                j.rank, j.run_at, j.id,
                json_build_array(
                    j.id, j.kind, j.token, j.attempt, j.max_attempts, j.payload::text, j.priority, j.crashes, j.rank,
                    (date_part('epoch', j.run_at) * 1000000)::bigint,  -- only for order, as in claim_queue
                    CASE WHEN num_nonnulls(
                        j.idempotency_key, j.affinity_key, j.concurrency_key, j.source_ref, j.target_ref, j.payload_ref, j.actor,
                        j.created_by_user_id, j.requested_by_user_id, j.tenant, j.workflow_id, j.parent_id, j.run_id, j.trace,
                        j.artifacts_path, j.progress) > 0
                    THEN tenure.grant_extras(j) END
                ) AS line
        )
        SELECT json_agg(t.line ORDER BY t.rank, t.run_at, t.id) INTO v_grants FROM taken AS t;
    END IF;
    RETURN json_build_object(
        'lines', json_build_array(json_build_array(p_queue, (date_part('epoch', v_until) * 1000000)::bigint, v_started, v_grants)),
        'marks', '[]'::json, 'expired', v_now_us, 'due', v_now_us, 'waiting', NULL, 'shared', NULL,
        'offered', false, 'age', NULL, 'news', NULL);
END
$$;

-- grant_rest: grant_jobs, under those settings of exchange that claim_few does without.
CREATE OR REPLACE FUNCTION tenure.grant_rest(p_claim json, p_now timestamptz) RETURNS json
LANGUAGE plpgsql
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$ BEGIN RETURN tenure.grant_jobs(p_claim, p_now); END $$;

-- grant_few: claim_few for a claim in JSON, if it is one of those; else null, which asks for grant_jobs.
CREATE OR REPLACE FUNCTION tenure.grant_few(p_claim json) RETURNS json
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN (
        SELECT tenure.claim_few(
            c.worker, c.queues ->> 0, c."limit", c.lease, (c.marks ->> 'expired')::bigint, (c.marks ->> 'due')::bigint, c.wake, c.beat, true,
            coalesce(c.offers, false), coalesce(c.offered, false))
        FROM json_to_record(p_claim) AS c(
            worker text, queues json, "limit" integer, kinds json, affinity json, lease double precision, held json, wake boolean,
            beat boolean, offers boolean, offered boolean, marks json)
        WHERE c."limit" < 50 AND c.kinds IS NULL AND c.affinity IS NULL AND c.held IS NULL
            AND c.queues ->> 1 IS NULL AND c.marks -> 'queues' ->> (c.queues ->> 0) IS NULL
    );
END
$$;

-- grant_extras: what is set of a job's rare columns. In plpgsql, so that a grant without any does not get it ready.
CREATE OR REPLACE FUNCTION tenure.grant_extras(p_job tenure.job) RETURNS json
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN json_strip_nulls(json_build_object(
        'key', p_job.idempotency_key, 'affinity_key', p_job.affinity_key, 'concurrency_key', p_job.concurrency_key,
        'source_ref', p_job.source_ref, 'target_ref', p_job.target_ref, 'payload_ref', p_job.payload_ref, 'actor', p_job.actor,
        'created_by_user_id', p_job.created_by_user_id, 'requested_by_user_id', p_job.requested_by_user_id,
        'tenant', p_job.tenant, 'workflow_id', p_job.workflow_id, 'parent_id', p_job.parent_id, 'run_id', p_job.run_id,
        'trace', p_job.trace, 'artifacts_path', p_job.artifacts_path, 'progress', p_job.progress));
END
$$;

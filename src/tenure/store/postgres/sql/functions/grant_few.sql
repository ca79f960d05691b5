-- grant_few: grant_jobs for the common claim of an idle or little loaded worker: fewer than 50 jobs, one open queue without limits of its
-- own, no lease run out, no job come due. Then nothing is to be done but to grant, and it is done in few words: what such a claim costs is
-- getting ready, statement by statement and expression by expression. Answers as grant_jobs does; null asks for grant_jobs itself, which
-- also takes the claims that change whom to wake: that has to be written before the look.
-- Where a mark says that everything before it was looked at, the look begins a millisecond earlier: a double is not exact, and need not be.
CREATE OR REPLACE FUNCTION tenure.grant_few(p_claim json, p_now timestamptz) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_queue text;
    v_worker text;
    v_until timestamptz;
    v_started boolean;
    v_at tid[];
    v_grants json;
    v_cutoff timestamptz := tenure.expiry_cutoff(p_now);
    -- As to_us would have it until the year 2255, and far cheaper.
    v_now_us bigint := date_part('epoch', p_now) * 1000000;
BEGIN
    SELECT q.name, c.worker, p_now + coalesce(c.lease, q.lease_seconds) * interval '1 second', q.start_on_claim, (
        SELECT array_agg(p.at)
        FROM (
            SELECT j.ctid AS at
            FROM tenure.job AS j
            WHERE j.queue = q.name AND j.state = 'queued' AND j.is_due
            ORDER BY j.rank, j.run_at, j.id
            LIMIT c."limit"
            FOR UPDATE SKIP LOCKED
        ) AS p
    )
    INTO v_queue, v_worker, v_until, v_started, v_at
    FROM json_to_record(p_claim) AS c(
        worker text, queues json, "limit" integer, kinds json, affinity json, lease double precision, held json, wake boolean, marks json)
    JOIN tenure.queue AS q ON q.name = c.queues ->> 0
    WHERE c."limit" < 50 AND c.kinds IS NULL AND c.affinity IS NULL AND c.held IS NULL AND c.wake IS NULL
        AND c.queues ->> 1 IS NULL AND c.marks -> 'queues' ->> q.name IS NULL
        AND q.paused_at IS NULL AND q.concurrency IS NULL AND q.concurrency_per_key IS NULL AND NOT q.events
        AND (c.lease IS NULL OR c.lease > 0 AND c.lease <= q.lease_max_seconds)
        AND NOT EXISTS (SELECT 1 FROM tenure.gate AS g WHERE NOT g.is_open)
        AND NOT EXISTS (
            SELECT 1
            FROM tenure.job AS j
            WHERE j.state IN ('leased', 'running')
                AND j.lease_until <= v_cutoff
                AND j.lease_until >= coalesce(to_timestamp((c.marks ->> 'expired')::double precision / 1000000 - 0.001), '-infinity')
        )
        AND NOT EXISTS (
            SELECT 1
            FROM tenure.job AS j
            WHERE NOT j.is_due AND j.state IN ('queued', 'waiting')
                AND j.run_at <= p_now
                AND j.run_at >= coalesce(to_timestamp((c.marks ->> 'due')::double precision / 1000000 - 0.001), '-infinity')
        );
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF v_at IS NULL THEN
        RETURN json_build_object('lines', '[]'::json, 'marks', '[]'::json, 'expired', v_now_us, 'due', v_now_us,
            'waiting', (SELECT count(*) FROM tenure.waiter AS w WHERE w.queue = v_queue));
    END IF;
    -- The same UPDATE twice: a single job, the common case here, is not gathered and sorted, which takes 40 to 70 of some 300 microseconds.
    IF cardinality(v_at) = 1 THEN
        UPDATE tenure.job AS j
        SET state = CASE WHEN v_started THEN 'running' ELSE 'leased' END,
            token = j.token + 1,
            attempt = j.attempt + 1,
            lease_owner = v_worker,
            lease_until = v_until,
            claimed_at = p_now,
            started_at = CASE WHEN v_started THEN coalesce(j.started_at, p_now) ELSE j.started_at END,
            updated_at = p_now
        WHERE j.ctid = v_at[1]
        RETURNING json_build_array(
            j.id, j.kind, j.token, j.attempt, j.max_attempts, j.payload::text, j.priority, j.crashes, j.rank,
            (date_part('epoch', j.run_at) * 1000000)::bigint,  -- only for order, as in claim_queue
            CASE WHEN num_nonnulls(
                j.idempotency_key, j.affinity_key, j.concurrency_key, j.source_ref, j.target_ref, j.payload_ref, j.actor,
                j.created_by_user_id, j.requested_by_user_id, j.tenant, j.workflow_id, j.parent_id, j.run_id, j.trace,
                j.artifacts_path, j.progress) > 0
            THEN tenure.grant_extras(j) END
        ) INTO v_grants;
        v_grants := json_build_array(v_grants);
    ELSE
        WITH taken AS MATERIALIZED (
            UPDATE tenure.job AS j
            SET state = CASE WHEN v_started THEN 'running' ELSE 'leased' END,
                token = j.token + 1,
                attempt = j.attempt + 1,
                lease_owner = v_worker,
                lease_until = v_until,
                claimed_at = p_now,
                started_at = CASE WHEN v_started THEN coalesce(j.started_at, p_now) ELSE j.started_at END,
                updated_at = p_now
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
        'lines', json_build_array(json_build_array(v_queue, (date_part('epoch', v_until) * 1000000)::bigint, v_started, v_grants)),
        'marks', '[]'::json, 'expired', v_now_us, 'due', v_now_us, 'waiting', NULL);
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

-- The job that an enqueue hands over. An idle worker offers, with a claim that found nothing, to take a job for the next moment. An enqueue
-- that finds the offer grants it the job in its own transaction and says so in its notification: `granted:`, the worker, the job. The worker
-- reads the job by its id, which commits nothing, and starts.
--
-- An offer is withdrawn by whatever takes it up, and by the next claim of its worker. If it is gone then, a job was handed over, and that
-- claim gives it out, whether the word of it has arrived or not: a word that is lost costs a poll. The session that listens for a worker holds
-- a lock in its name until it ends (stand_by), so nothing is handed to a worker that is gone. One that is stopped, or cut off without a trace,
-- is handed one job at most, within 2.5 seconds of its last poll.
--
-- No payload goes into the notification: whoever may connect can listen.

-- hand_to_waiter: put the job down as granted to a worker that has offered to take one, and tell it. The row is as a claim would leave it.
-- Only where claim_few would do nothing but grant just this job: none waits before it, no lease has run out and none has come due since the
-- claim that offered, which looked itself. Gates were looked at by the enqueue. Answers whether it was done.
-- It waits for nobody but an earlier try of this very request, which waits for nobody; see the locks in schema.sql.
CREATE OR REPLACE FUNCTION tenure.hand_to_waiter(
    p_queue text, p_kind text, p_id uuid, p_payload json, p_rank bigint, p_priority integer, p_max_attempts integer, p_profile text,
    p_now timestamptz
) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_worker text;
    v_lease double precision;
    v_until timestamptz;
BEGIN
    SELECT w.worker, w.lease_seconds, w.offered_until INTO v_worker, v_lease, v_until
    FROM tenure.waiter AS w
    WHERE w.queue = p_queue AND w.offered_until > p_now
        AND (SELECT count(*) FROM (SELECT 1 FROM tenure.waiter AS o WHERE o.queue = p_queue LIMIT 9) AS few) <= 8  -- as in offer
    LIMIT 1
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Asked under the lock on its row, so that no two ask at once: whoever finds nobody holds the lock for the rest of its transaction.
    IF pg_try_advisory_xact_lock(tenure.presence(), hashtext(v_worker)) THEN
        PERFORM tenure.withdraw_offer(v_worker, p_queue);
        RETURN false;
    END IF;
    IF NOT tenure.put_granted(p_queue, p_kind, p_id, p_payload, p_rank, p_priority, p_max_attempts, p_profile,
        v_worker, v_lease, v_until - interval '3 seconds', p_now)
    THEN
        RETURN false;
    END IF;
    PERFORM tenure.withdraw_offer(v_worker, p_queue);
    PERFORM pg_notify('tenure', 'granted:' || v_worker || ':' || p_id);
    RETURN true;
END
$$;

-- put_granted: the row of a job that is granted from the start, if a claim would grant it now. A function of its own, because its plan must
-- be as sure as a claim's.
CREATE OR REPLACE FUNCTION tenure.put_granted(
    p_queue text, p_kind text, p_id uuid, p_payload json, p_rank bigint, p_priority integer, p_max_attempts integer, p_profile text,
    p_worker text, p_lease double precision, p_since timestamptz, p_now timestamptz
) RETURNS boolean
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_cutoff timestamptz := tenure.expiry_cutoff(p_now);
BEGIN
    INSERT INTO tenure.job (
        id, token, rank, run_at, created_at, updated_at, lease_until, claimed_at, started_at, priority, attempt, max_attempts, is_due,
        state, queue, kind, profile, payload, lease_owner
    )
    SELECT
        p_id, 1, p_rank, p_now, p_now, p_now, p_now + coalesce(p_lease, q.lease_seconds) * interval '1 second', p_now,
        CASE WHEN q.start_on_claim THEN p_now END, p_priority, 1, p_max_attempts, true,
        CASE WHEN q.start_on_claim THEN 'running' ELSE 'leased' END, p_queue, p_kind, p_profile, p_payload, p_worker
    FROM tenure.queue AS q
    WHERE q.name = p_queue
        AND q.paused_at IS NULL AND q.concurrency IS NULL AND q.concurrency_per_key IS NULL AND NOT q.events
        AND coalesce(p_lease, q.lease_seconds) <= q.lease_max_seconds
        AND NOT EXISTS (
            SELECT 1
            FROM tenure.job AS j
            WHERE j.queue = p_queue AND j.state = 'queued' AND j.is_due
                AND j.rank <= p_rank
        )
        AND NOT EXISTS (
            SELECT 1
            FROM tenure.job AS j
            WHERE j.state IN ('leased', 'running') AND j.lease_until <= v_cutoff AND j.lease_until >= p_since
        )
        AND NOT EXISTS (
            SELECT 1
            FROM tenure.job AS j
            WHERE NOT j.is_due AND j.state IN ('queued', 'waiting') AND j.run_at <= p_now AND j.run_at >= p_since
        )
    ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;

-- take_over: a job that was handed over to this worker, as claim_few would grant it. Nothing is written. No line if the worker holds it no
-- more: it was removed meanwhile, or its lease has run out.
CREATE OR REPLACE FUNCTION tenure.take_over(p_worker text, p_job uuid) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_cutoff timestamptz := tenure.expiry_cutoff(v_now);
    v_line json;
    v_age double precision;
BEGIN
    SELECT json_build_array(j.queue, (date_part('epoch', j.lease_until) * 1000000)::bigint, j.state = 'running', json_build_array(json_build_array(
            j.id, j.kind, j.token, j.attempt, j.max_attempts, j.payload::text, j.priority, j.crashes, j.rank,
            (date_part('epoch', j.run_at) * 1000000)::bigint,
            CASE WHEN num_nonnulls(
                j.idempotency_key, j.affinity_key, j.concurrency_key, j.source_ref, j.target_ref, j.payload_ref, j.actor,
                j.created_by_user_id, j.requested_by_user_id, j.tenant, j.workflow_id, j.parent_id, j.run_id, j.trace,
                j.artifacts_path, j.progress) > 0
            THEN tenure.grant_extras(j) END
        ))), date_part('epoch', v_now - j.claimed_at)
    INTO v_line, v_age
    FROM tenure.job AS j
    WHERE j.id = p_job AND j.lease_owner = p_worker AND j.state IN ('leased', 'running') AND j.lease_until > v_cutoff;
    RETURN json_build_object('lines', CASE WHEN v_line IS NULL THEN '[]' ELSE json_build_array(v_line) END, 'age', v_age);
END
$$;

-- offer: let an enqueue hand a job over to this worker for 2.5 seconds, which are two polls and some. Only where few wait: a large fleet polls
-- seldom, and is not to write whenever it does. Not under a short lease, which would run out before a word that got lost is made good.
CREATE OR REPLACE FUNCTION tenure.offer(
    p_worker text, p_queue text, p_lease double precision, p_now timestamptz, p_until timestamptz
) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE tenure.waiter AS w
    SET offered_until = p_now + interval '2.5 seconds',
        lease_seconds = p_lease
    WHERE w.queue = p_queue AND w.worker = p_worker AND length(p_worker) <= 200  -- a notification has little room
        AND p_until >= p_now + interval '10 seconds'
        AND (SELECT count(*) FROM (SELECT 1 FROM tenure.waiter AS o WHERE o.queue = p_queue LIMIT 9) AS few) <= 8;
    RETURN FOUND;
END
$$;

-- stand_by: while this session lives, jobs may be handed over to this worker. For the session that listens, and no other: one that enqueues
-- must not stand by for the worker it is to ask for, because nobody is kept out by a lock of his own.
CREATE OR REPLACE FUNCTION tenure.stand_by(p_worker text) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    PERFORM pg_advisory_lock_shared(tenure.presence(), hashtext(p_worker));
    RETURN NULL;
END
$$;

-- presence: the first part of the names of the locks by which sessions stand by.
CREATE OR REPLACE FUNCTION tenure.presence() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT 1952804469 $$;

-- lock_offer: whether the worker's offer still stands. If so nobody takes it up before the caller's transaction ends.
CREATE OR REPLACE FUNCTION tenure.lock_offer(p_worker text, p_queue text) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1
    FROM tenure.waiter AS w
    WHERE w.queue = p_queue AND w.worker = p_worker AND w.offered_until IS NOT NULL
    FOR UPDATE;
    RETURN FOUND;
END
$$;

-- withdraw_offer: no job is handed over to this worker any more.
CREATE OR REPLACE FUNCTION tenure.withdraw_offer(p_worker text, p_queue text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE tenure.waiter AS w
    SET offered_until = NULL
    WHERE w.queue = p_queue AND w.worker = p_worker AND w.offered_until IS NOT NULL;
END
$$;

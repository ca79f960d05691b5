-- finish: end an attempt that did not succeed. The one place that decides what comes next. Answers the state the job is in now.
--
-- p_job is the row as it stands, locked by the caller, who has checked the token or found the lease run out.
-- p_move: fail, reject, release, suspend, stop, expire. A cancel that was asked for wins over all of them.
-- A failed attempt waits by its backoff (p_delay wins); an expired one is claimable at once and keeps its run_at, so that it comes
-- before newer work. Release and suspend give the attempt back. Every end leaves an attempt row; a death leaves a dead letter.
CREATE OR REPLACE FUNCTION tenure.finish(
    p_job tenure.job, p_move text, p_class text, p_error text, p_delay double precision, p_waiting_for text, p_now timestamptz
) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_queue tenure.queue;
    v_error text := left(p_error, 16384);
    v_state text := CASE
        WHEN p_job.cancel_requested_at IS NOT NULL OR p_move = 'stop' THEN 'cancelled'
        WHEN p_move = 'reject' THEN 'failed'
        WHEN p_move = 'release' THEN 'queued'
        WHEN p_move = 'suspend' THEN 'waiting'
        WHEN p_job.attempt >= p_job.max_attempts THEN 'dead'
        ELSE 'queued'
    END;
    v_failed boolean := p_move IN ('fail', 'expire', 'reject');
    v_class text := CASE WHEN v_state = 'cancelled' THEN 'cancelled' ELSE p_class END;
    v_run_at timestamptz := p_job.run_at;
BEGIN
    SELECT * INTO v_queue FROM tenure.queue AS q WHERE q.name = p_job.queue;
    IF v_state = 'waiting' THEN
        v_run_at := coalesce(p_now + p_delay * interval '1 second', 'infinity');
    ELSIF v_state = 'queued' AND p_move = 'fail' THEN
        v_run_at := p_now + coalesce(p_delay, tenure.backoff_seconds(v_queue, p_job.backoff, p_job.attempt)) * interval '1 second';
    ELSIF v_state = 'queued' AND p_move = 'release' AND p_delay > 0 THEN
        v_run_at := p_now + p_delay * interval '1 second';
    END IF;

    UPDATE tenure.job AS j
    SET state = v_state,
        attempt = CASE WHEN p_move IN ('release', 'suspend') AND v_state <> 'cancelled' THEN greatest(j.attempt - 1, 0) ELSE j.attempt END,
        crashes = j.crashes + CASE WHEN p_move = 'expire' OR p_class = 'crash' THEN 1 ELSE 0 END,
        run_at = v_run_at,
        is_due = v_state <> 'waiting' AND v_run_at <= p_now,
        lease_owner = NULL,
        lease_until = NULL,
        waiting_for = CASE WHEN v_state = 'waiting' THEN p_waiting_for END,
        last_error = CASE WHEN v_failed OR (v_state = 'cancelled' AND v_error IS NOT NULL) THEN v_error ELSE j.last_error END,
        failure_class = CASE WHEN v_failed OR v_state = 'cancelled' THEN v_class ELSE j.failure_class END,
        finished_at = CASE WHEN v_state IN ('dead', 'failed', 'cancelled') THEN p_now END,
        dedup_slot = CASE WHEN v_state IN ('dead', 'failed', 'cancelled') AND left(j.dedup_slot, 1) = 'a' THEN NULL ELSE j.dedup_slot END,
        updated_at = p_now
    WHERE j.id = p_job.id;

    INSERT INTO tenure.attempt (job_id, token, attempt, worker, claimed_at, ended_at, outcome, failure_class, error, fingerprint, run_at)
    VALUES (
        p_job.id, p_job.token, p_job.attempt, p_job.lease_owner, p_job.claimed_at, p_now,
        CASE
            WHEN p_move = 'expire' THEN 'expired'  -- whatever it came to: a late word of its worker was never taken in
            WHEN v_state IN ('cancelled', 'dead', 'failed') THEN v_state
            WHEN p_move = 'suspend' THEN 'suspended'
            WHEN p_move = 'release' THEN 'released'
            ELSE 'retried'
        END,
        v_class, v_error, CASE WHEN v_failed THEN tenure.fingerprint(v_class, v_error) END,
        CASE WHEN v_state = 'queued' THEN v_run_at END
    )
    ON CONFLICT DO NOTHING;
    IF v_state IN ('dead', 'failed') THEN
        PERFORM tenure.bury(p_job, v_state, v_class, v_error, p_now);
    END IF;
    IF v_queue.events THEN
        PERFORM tenure.tell(
            CASE
                WHEN v_state IN ('cancelled', 'dead', 'failed') THEN v_state
                WHEN p_move = 'expire' THEN 'reclaimed'
                WHEN p_move = 'suspend' THEN 'suspended'
                WHEN p_move = 'release' THEN 'released'
                ELSE 'retried'
            END,
            ARRAY[p_job.id], p_now
        );
    END IF;
    IF v_state = 'queued' AND v_run_at <= p_now THEN
        PERFORM tenure.notify(v_queue, NULL);
    END IF;
    RETURN v_state;
END
$$;

-- bury: the dead letter of a job that has just died, in the same transaction.
CREATE OR REPLACE FUNCTION tenure.bury(p_job tenure.job, p_state text, p_class text, p_error text, p_now timestamptz) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO tenure.dead_letter (
        job_id, token, queue, profile, kind, state, payload, forbidden_keys, source_ref, target_ref, payload_ref, idempotency_key,
        actor, run_id, workflow_id, attempts, crashes, failure_class, final_error, fingerprint, moved_at, moved_by
    )
    VALUES (
        p_job.id, p_job.token, p_job.queue, p_job.profile, p_job.kind, p_state, p_job.payload, p_job.forbidden_keys,
        p_job.source_ref, p_job.target_ref, p_job.payload_ref, p_job.idempotency_key, p_job.actor, p_job.run_id, p_job.workflow_id,
        p_job.attempt, p_job.crashes + CASE WHEN p_class IN ('crash', 'lease_lost') THEN 1 ELSE 0 END, p_class,
        coalesce(nullif(btrim(p_error), ''), p_class), tenure.fingerprint(p_class, p_error), p_now,
        coalesce(p_job.lease_owner, 'tenure')
    )
    ON CONFLICT DO NOTHING
$$;

-- backoff_seconds: min(cap, base × f(n)), then jitter, which only lengthens. A job's own backoff wins over its queue's.
CREATE OR REPLACE FUNCTION tenure.backoff_seconds(p_queue tenure.queue, p_own json, p_attempt integer) RETURNS double precision
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$
    SELECT least(p.cap, p.base * CASE p.shape
            WHEN 'none' THEN 0
            WHEN 'constant' THEN 1
            WHEN 'linear' THEN p_attempt
            WHEN 'power' THEN power(p_attempt, p.exponent)
            ELSE power(p.factor, least(p_attempt - 1, 60))
        END) * (1 + p.jitter * random())
    FROM (
        SELECT
            coalesce(p_own ->> 'shape', p_queue.backoff_shape) AS shape,
            coalesce((p_own ->> 'base_seconds')::double precision, p_queue.backoff_base_seconds) AS base,
            coalesce((p_own ->> 'power')::double precision, p_queue.backoff_power) AS exponent,
            coalesce((p_own ->> 'factor')::double precision, p_queue.backoff_factor) AS factor,
            coalesce((p_own ->> 'cap_seconds')::double precision, p_queue.backoff_cap_seconds) AS cap,
            coalesce((p_own ->> 'jitter')::double precision, p_queue.backoff_jitter) AS jitter
    ) AS p
$$;

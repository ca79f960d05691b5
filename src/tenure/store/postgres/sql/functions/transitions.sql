-- Transitions: what each move does to a job. model/state.py is the specification, and a test walks every case of it against `finish`.

-- finish: end an attempt that did not succeed. The one place that decides what comes next. Answers the state the job is in now.
--
-- p_job is the row as it stands, locked by the caller, who has checked the token or found the lease run out.
-- p_move: fail, reject, release, suspend, stop, expire, or complete for a job that was asked to stop. A requested cancel wins over all.
-- p_class null, of a release: the job only waited inside its worker, and no attempt row is written.
-- p_is_alone, of an expiry: the worker held nothing else, so the crash is the job's own. p_is_vanished: the worker was not seen since.
-- p_is_met, of a suspend: what it waits for has happened already. p_due: when it is to be woken at the latest, instead of p_delay.
-- A job that has something to undo first is queued instead of ending badly; see undo_instead.
-- Where this grant has recorded a new step, its attempt counts as the first: attempts are counted per stretch.
CREATE OR REPLACE FUNCTION tenure.finish(
    p_job tenure.job, p_move text, p_class text, p_error text, p_delay double precision, p_waiting_for text, p_now timestamptz,
    p_is_alone boolean DEFAULT true, p_is_vanished boolean DEFAULT true, p_is_met boolean DEFAULT false, p_due timestamptz DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_queue tenure.queue;
    v_job tenure.job;
    v_error text := left(p_error, 16384);
    v_is_progress boolean := coalesce(p_job.step_token = p_job.token, false);
    v_attempt integer := CASE WHEN v_is_progress THEN 1 ELSE p_job.attempt END;
    v_crashes integer := CASE WHEN v_is_progress THEN 0 ELSE p_job.crashes END;
    -- Woken while a worker held it: the wake-up counts for the suspend that follows.
    v_is_met boolean := p_is_met OR coalesce(p_job.wake_token = p_job.token, false);
    v_is_cancelled boolean := p_job.cancel_requested_at IS NOT NULL OR p_move = 'stop';
    -- The end of a worker that is not proven to be this job's doing: the attempt is refunded, whatever is left.
    v_is_beside boolean := p_move = 'expire' AND NOT p_is_alone;
    v_is_crash boolean := p_move = 'expire' AND p_is_alone OR p_move = 'fail' AND p_class = 'crash';
    v_state text := CASE
        WHEN v_is_cancelled THEN 'cancelled'
        WHEN p_move = 'reject' THEN 'failed'
        WHEN p_move = 'suspend' THEN CASE WHEN v_is_met THEN 'queued' ELSE 'waiting' END
        WHEN p_move = 'release' OR v_is_beside THEN 'queued'
        WHEN v_attempt >= p_job.max_attempts THEN 'dead'
        ELSE 'queued'
    END;
    v_class text := CASE  -- cancelled with its workflow, where that marked it
        WHEN v_is_cancelled AND p_job.failure_class = 'workflow' THEN 'workflow' WHEN v_is_cancelled THEN 'cancelled' ELSE p_class END;
    v_records_error boolean := v_is_cancelled OR p_move IN ('fail', 'reject', 'expire');
    v_outcome text := CASE
        WHEN p_move = 'expire' THEN 'expired'  -- in every case: a late outcome of its worker was never taken in
        WHEN v_state IN ('cancelled', 'dead', 'failed') THEN v_state
        WHEN p_move = 'suspend' OR p_class IS NULL THEN NULL
        WHEN p_move = 'release' THEN 'released'
        ELSE 'retried'
    END;
    v_run_at timestamptz := p_job.run_at;
    v_is_undone boolean := false;
BEGIN
    SELECT * INTO v_queue FROM tenure.queue AS q WHERE q.name = p_job.queue;
    IF p_job.step_token IS NOT NULL AND v_state IN ('dead', 'failed', 'cancelled') AND tenure.undo_instead(p_job, v_state, v_class, v_error, p_now) THEN
        v_outcome := CASE WHEN p_move = 'expire' THEN 'expired' ELSE 'retried' END;
        v_state := 'queued';
        v_is_undone := true;
    END IF;
    IF v_state = 'waiting' THEN
        v_run_at := coalesce(p_due, p_now + p_delay * interval '1 second', 'infinity');
    ELSIF v_state = 'queued' AND p_move = 'fail' AND NOT v_is_undone THEN
        v_run_at := p_now + coalesce(p_delay, tenure.backoff_seconds(v_queue, p_job.backoff, v_attempt)) * interval '1 second';
    ELSIF v_state = 'queued' AND p_move = 'release' AND p_delay > 0 AND NOT v_is_undone THEN
        v_run_at := p_now + p_delay * interval '1 second';
    END IF;

    UPDATE tenure.job AS j
    SET state = v_state,
        attempt = CASE WHEN v_is_undone THEN 0 WHEN NOT v_is_cancelled AND (v_is_beside OR p_move IN ('release', 'suspend')) THEN greatest(v_attempt - 1, 0) ELSE v_attempt END,
        crashes = CASE WHEN v_is_undone THEN 0 ELSE v_crashes END + CASE WHEN v_is_crash AND NOT v_is_cancelled THEN 1 ELSE 0 END,
        suspicion = CASE
            WHEN v_is_undone AND v_is_cancelled THEN j.suspicion
            WHEN v_state IN ('waiting', 'queued') AND (p_move = 'suspend' OR p_move = 'fail' AND NOT v_is_crash) THEN 0
            WHEN v_state = 'queued' AND p_move = 'fail' THEN greatest(j.suspicion, 1)
            WHEN v_state = 'queued' AND p_move = 'expire' AND (p_is_alone OR p_is_vanished) THEN j.suspicion + 1
            ELSE j.suspicion
        END,
        is_beside = false,
        run_at = v_run_at,
        place_at = CASE WHEN v_state = 'waiting' THEN p_job.run_at END,
        is_due = v_state <> 'waiting' AND v_run_at <= p_now,
        lease_owner = NULL,
        lease_until = NULL,
        cancel_requested_at = CASE WHEN NOT v_is_undone THEN j.cancel_requested_at END,
        waiting_for = CASE WHEN v_state = 'waiting' THEN p_waiting_for END,
        last_error = CASE WHEN v_records_error THEN coalesce(v_error, CASE WHEN v_is_cancelled THEN j.last_error END) ELSE j.last_error END,
        failure_class = CASE WHEN v_records_error THEN v_class ELSE j.failure_class END,
        finished_at = CASE WHEN v_state IN ('dead', 'failed', 'cancelled') THEN p_now END,
        dedup_slot = CASE WHEN v_state IN ('dead', 'failed', 'cancelled') AND left(j.dedup_slot, 1) = 'a' THEN NULL ELSE j.dedup_slot END,
        updated_at = p_now
    WHERE j.id = p_job.id
    RETURNING j.* INTO v_job;

    IF v_job.workflow_id IS NOT NULL AND v_state IN ('dead', 'failed', 'cancelled') THEN
        PERFORM tenure.note_tasks(ARRAY[v_job.id], ARRAY[v_job.workflow_id]);
    END IF;
    IF v_job.step_token IS NOT NULL AND v_job.finished_at IS NOT NULL THEN
        PERFORM tenure.end_durable(ARRAY[v_job.id], p_now);
    END IF;
    IF v_outcome IS NOT NULL THEN
        INSERT INTO tenure.attempt (job_id, token, attempt, worker, login, claimed_at, ended_at, outcome, failure_class, error, fingerprint, run_at)
        VALUES (
            p_job.id, p_job.token, v_attempt, p_job.lease_owner, p_job.lease_login, p_job.claimed_at, p_now, v_outcome, v_class, v_error,
            CASE WHEN p_move = 'expire' OR v_outcome IN ('retried', 'dead', 'failed') THEN tenure.fingerprint(v_class, v_error) END,
            CASE WHEN v_state = 'queued' THEN v_run_at END
        )
        ON CONFLICT DO NOTHING;
    END IF;
    IF v_job.group_id IS NOT NULL AND v_job.finished_at IS NOT NULL THEN
        PERFORM tenure.tell_group(v_job.group_id, v_state, 1);
    END IF;
    IF v_state IN ('dead', 'failed') THEN
        PERFORM tenure.bury(v_job, v_error, p_job.lease_owner, p_now);
    END IF;
    IF v_is_crash AND NOT v_is_cancelled AND v_job.crashes >= 2 THEN
        PERFORM tenure.consider_quarantine(v_job.kind, p_now);
    END IF;
    IF v_queue.events OR v_queue.agent_events = 'ends' THEN
        PERFORM tenure.tell(
            CASE
                WHEN v_state IN ('cancelled', 'dead', 'failed') THEN v_state
                WHEN p_move = 'expire' THEN 'reclaimed'
                WHEN v_is_undone THEN 'retried'
                WHEN p_move = 'suspend' THEN CASE v_state WHEN 'queued' THEN 'woken' ELSE 'suspended' END
                WHEN p_move = 'release' THEN 'released'
                ELSE 'retried'
            END,
            ARRAY[p_job.id], p_now
        );
    END IF;
    IF v_state = 'queued' AND v_run_at <= p_now THEN
        PERFORM tenure.notify(ARRAY[v_queue.name]);
    END IF;
    RETURN v_state;
END
$$;

-- consider_quarantine: a job of this kind has crashed again by its own doing. If three have crashed twice each within ten minutes, and since
-- the gate of the kind was last opened, it is closed; tenure.model.state has the same numbers. Where another transaction is at it, the
-- next crash decides: a settle waits for no gate.
CREATE OR REPLACE FUNCTION tenure.consider_quarantine(p_kind text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_since timestamptz := p_now - interval '10 minutes';
    v_gate tenure.gate;
    v_crashed uuid[];
BEGIN
    SELECT * INTO v_gate FROM tenure.gate AS g WHERE g.name = 'kind:' || p_kind;
    IF NOT v_gate.is_open OR NOT pg_try_advisory_xact_lock(hashtextextended('tenure.quarantine', 0)) THEN
        RETURN;
    END IF;
    v_crashed := ARRAY(
        SELECT j.id
        FROM tenure.job AS j
        WHERE j.kind = p_kind AND j.crashes >= 2 AND j.updated_at > v_since AND 2 <= (
            SELECT count(*) FROM tenure.attempt AS a
            WHERE a.job_id = j.id AND a.failure_class = 'crash' AND a.ended_at > greatest(v_since, v_gate.updated_at))
        ORDER BY j.updated_at DESC
        LIMIT 3
    );
    IF cardinality(v_crashed) >= 3 THEN
        PERFORM tenure.set_gate(json_build_object('name', 'kind:' || p_kind, 'is_open', false, 'actor', 'tenure', 'reason',
            'Jobs of this kind keep crashing their workers, the last ones within ten minutes: ' || array_to_string(v_crashed, ', ') || '.'));
    END IF;
END
$$;

-- bury: the dead letter of a job that has just died, in the same transaction, with the numbers that the job has now.
CREATE OR REPLACE FUNCTION tenure.bury(p_job tenure.job, p_error text, p_worker text, p_now timestamptz) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO tenure.dead_letter (
        job_id, token, queue, profile, kind, state, payload, forbidden_keys, source_ref, target_ref, payload_ref, idempotency_key,
        actor, run_id, workflow_id, attempts, crashes, failure_class, final_error, fingerprint, moved_at, moved_by
    )
    VALUES (
        p_job.id, p_job.token, p_job.queue, p_job.profile, p_job.kind, p_job.state, p_job.payload, p_job.forbidden_keys,
        p_job.source_ref, p_job.target_ref, p_job.payload_ref, p_job.idempotency_key, p_job.actor, p_job.run_id, p_job.workflow_id,
        p_job.attempt, p_job.crashes, p_job.failure_class,
        coalesce(nullif(btrim(p_error), ''), p_job.failure_class), tenure.fingerprint(p_job.failure_class, p_error), p_now,
        coalesce(p_worker, 'tenure')
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

-- fingerprint: sixteen hex digits, the same for failures that differ only in numbers, ids and addresses.
-- The rule is tenure.model.fingerprint's; a test holds the two together.
CREATE OR REPLACE FUNCTION tenure.fingerprint(p_class text, p_error text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT pg_catalog.substr(
        pg_catalog.md5(
            p_class || '|' || pg_catalog.regexp_replace(
                pg_catalog.left(pg_catalog.lower(pg_catalog.split_part(coalesce(p_error, ''), E'\n', 1) COLLATE "C"), 500),
                '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|0x[0-9a-f]+|[0-9]+', '#', 'g'
            )
        ),
        1, 16
    )
$$;

-- tell: what happened to jobs that just moved, for those queues that ask for it. Runs after the move, so it tells where each stands now.
-- Ends of jobs are passed on to the agent events of those queues that keep them.
CREATE OR REPLACE FUNCTION tenure.tell(p_kind text, p_ids uuid[], p_now timestamptz) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO tenure.event (at, kind, job_id, queue, data)
    SELECT p_now, p_kind, j.id, j.queue, json_build_object(
        'state', j.state, 'attempt', j.attempt, 'token', j.token, 'kind', j.kind, 'worker', j.lease_owner,
        'class', CASE WHEN p_kind IN ('retried', 'reclaimed', 'failed', 'dead', 'cancelled') THEN j.failure_class END)
    FROM unnest(p_ids) WITH ORDINALITY AS m(id, nth)
    JOIN tenure.job AS j ON j.id BETWEEN m.id AND m.id
    JOIN tenure.queue AS q ON q.name = j.queue AND q.events
    ORDER BY m.nth;
    SELECT tenure.keep_agent_events(p_kind, p_ids, p_now) WHERE p_kind IN ('completed', 'failed', 'dead')
$$;

-- expire_leases: take back jobs whose lease ran out, up to p_limit. p_after: everything up to there was looked at before.
-- Answers [id, token, state, run_at_us if it was queued] for each.
--
-- One sweep at a time: what an expired lease proves depends on what else its worker held, and two sweeps would count each other's rows.
-- A row that cannot be taken back is left as it is, and never stops the others; it stays visible as a lease that ran out long ago.
CREATE OR REPLACE FUNCTION tenure.expire_leases(p_now timestamptz, p_after timestamptz, p_limit integer) RETURNS json[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_cutoff timestamptz := tenure.expiry_cutoff(p_now);
    v_jobs tenure.job[];
    v_job tenure.job;
    v_answers json[] := '{}';
    v_seen text[] := '{}';
    v_beside text[] := '{}';
    v_is_alive boolean;
    v_answer json;
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM tenure.job AS j
        WHERE j.state IN ('leased', 'running') AND j.lease_until <= v_cutoff AND j.lease_until > coalesce(p_after, '-infinity')
    ) OR NOT pg_try_advisory_xact_lock(hashtextextended('tenure.expire', 0)) THEN
        RETURN v_answers;
    END IF;
    -- Read before the first is written: a cursor would skip the rows that mark_beside writes ahead of it.
    v_jobs := ARRAY(
        SELECT j
        FROM tenure.job AS j
        WHERE j.state IN ('leased', 'running') AND j.lease_until <= v_cutoff AND j.lease_until > coalesce(p_after, '-infinity')
        ORDER BY j.lease_until
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    );
    FOREACH v_job IN ARRAY v_jobs LOOP
        v_is_alive := EXISTS (SELECT 1 FROM tenure.worker AS w WHERE w.id = v_job.lease_owner AND w.last_seen_at >= v_job.lease_until);
        -- What the worker held is asked at the first of its jobs, and again at the first that shows that it has vanished.
        IF NOT v_job.lease_owner || v_is_alive = ANY (v_seen) THEN
            v_seen := v_seen || (v_job.lease_owner || v_is_alive);
            IF tenure.mark_beside(v_job, NOT v_is_alive, v_cutoff) THEN
                v_beside := v_beside || v_job.lease_owner;
            END IF;
        END IF;
        v_answer := tenure.take_back(v_job, v_job.is_beside OR v_job.lease_owner = ANY (v_beside), NOT v_is_alive, p_now);
        IF v_answer IS NOT NULL THEN
            v_answers := v_answers || v_answer;
        END IF;
    END LOOP;
    RETURN v_answers;
END
$$;

-- take_back: end the attempt of one job whose worker did not end it. Answers [id, token, state, run_at_us if it was queued]; null if the
-- row could not be taken back. The error names no worker, so that equal deaths have one fingerprint.
CREATE OR REPLACE FUNCTION tenure.take_back(p_job tenure.job, p_is_beside boolean, p_is_vanished boolean, p_now timestamptz) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_state text;
BEGIN
    v_state := tenure.finish(
        p_job, 'expire', CASE WHEN p_is_vanished THEN 'crash' ELSE 'lease_lost' END,
        'The lease ran out before the attempt ended: its worker crashed, hung, or lost the database.', NULL, NULL, p_now,
        NOT p_is_beside OR p_job.suspicion >= tenure.suspicion_max(), p_is_vanished);
    RETURN json_build_array(p_job.id, p_job.token, v_state, CASE WHEN v_state = 'queued' THEN tenure.to_us(p_job.run_at) END);
EXCEPTION WHEN OTHERS THEN
    RAISE LOG 'tenure: job % could not be taken back: %', p_job.id, SQLERRM;
    RETURN NULL;
END
$$;

-- mark_beside: whether the worker of this job holds others too. They are marked, so that they count as held beside others whenever their
-- own leases are taken back; of a worker that is seen alive only those whose leases have run out too.
CREATE OR REPLACE FUNCTION tenure.mark_beside(p_job tenure.job, p_is_vanished boolean, p_cutoff timestamptz) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_others uuid[];
BEGIN
    SELECT array_agg(j.id) INTO v_others
    FROM tenure.job AS j
    WHERE j.state IN ('leased', 'running') AND j.lease_until > '-infinity' AND j.lease_owner = p_job.lease_owner AND j.id <> p_job.id;
    IF v_others IS NOT NULL THEN
        UPDATE tenure.job AS j
        SET is_beside = true
        WHERE j.id IN (
            SELECT h.id
            FROM tenure.job AS h
            WHERE h.id = ANY (v_others) AND h.state IN ('leased', 'running') AND h.lease_owner = p_job.lease_owner AND NOT h.is_beside
                AND (p_is_vanished OR h.lease_until <= p_cutoff)
            FOR UPDATE SKIP LOCKED
        );
    END IF;
    RETURN v_others IS NOT NULL;
END
$$;

-- suspicion_max: from here on every further crash counts as the job's own. tenure.model.state has the same number.
CREATE OR REPLACE FUNCTION tenure.suspicion_max() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT 10 $$;

-- reap: expire_leases by request. Takes {"limit": n}.
CREATE OR REPLACE FUNCTION tenure.reap(p_request json) RETURNS json
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$ SELECT array_to_json(tenure.expire_leases(tenure.now(), NULL, coalesce((p_request ->> 'limit')::integer, 1000))) $$;

-- promote_due: make jobs claimable whose time has come; suspended ones with a time to wake among them. Bounded.
-- p_after: everything before it was looked at already. Answers up to where everything has been looked at now.
CREATE OR REPLACE FUNCTION tenure.promote_due(p_now timestamptz, p_after timestamptz, p_limit integer) RETURNS timestamptz
LANGUAGE plpgsql
AS $$
DECLARE
    v_ids uuid[];
    v_last timestamptz;
    v_woken uuid[];
    v_durable uuid[];
    v_queues text[];
BEGIN
    SELECT array_agg(d.id), max(d.run_at), array_agg(d.id) FILTER (WHERE d.state = 'waiting'),
        array_agg(d.id) FILTER (WHERE d.state = 'waiting' AND d.step_token IS NOT NULL), array_agg(DISTINCT d.queue)
    INTO v_ids, v_last, v_woken, v_durable, v_queues
    FROM (
        SELECT j.id, j.run_at, j.state, j.queue, j.step_token
        FROM tenure.job AS j
        WHERE NOT j.is_due AND j.state IN ('queued', 'waiting')
            AND j.run_at <= p_now AND j.run_at >= coalesce(p_after, '-infinity')
        ORDER BY j.run_at
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ) AS d;
    IF v_ids IS NOT NULL THEN
        UPDATE tenure.job AS j
        SET is_due = true,
            state = 'queued',
            run_at = coalesce(j.place_at, j.run_at),
            place_at = NULL,
            waiting_for = NULL,
            updated_at = p_now
        WHERE j.id = ANY (v_ids);
        IF v_durable IS NOT NULL THEN
            PERFORM tenure.close_due_steps(v_durable, p_now);
        END IF;
        IF v_woken IS NOT NULL THEN
            PERFORM tenure.tell('woken', v_woken, p_now);
        END IF;
        PERFORM tenure.notify(v_queues);  -- this claim takes what it has room for; the rest is for other workers
    END IF;
    RETURN CASE WHEN cardinality(v_ids) >= p_limit THEN v_last - interval '1 microsecond' ELSE p_now END;
END
$$;

-- cancel: queued and waiting jobs at once, held ones by request: their worker is told and settles them.
-- After 'cancelled' the job never starts; after 'requested' it never succeeds. With "children" (default) those of their groups too, by
-- pages that the sweep carries out.
-- Takes {"job_ids", "actor", "reason", "children", "versions": {id: version}}; answers [id, cancelled|requested|refused, state] for each,
-- in order of id. A job that has changed since its version was read is refused with the whole request.
CREATE OR REPLACE FUNCTION tenure.cancel(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_ids uuid[] := ARRAY(
        SELECT DISTINCT a.id
        FROM json_array_elements_text(p_request -> 'job_ids') AS g(id)
        CROSS JOIN LATERAL tenure.as_uuid(g.id) AS a(id)
        WHERE a.id IS NOT NULL
        ORDER BY 1);
    v_id uuid;
    v_answers json[] := '{}';
BEGIN
    PERFORM tenure.lock_runs(v_ids);
    FOREACH v_id IN ARRAY v_ids LOOP
        v_answers := v_answers || tenure.cancel_job(
            v_id, p_request ->> 'actor', p_request ->> 'reason', coalesce((p_request ->> 'children')::boolean, true), v_now,
            p_request -> 'versions' ->> v_id::text);
    END LOOP;
    RETURN array_to_json(v_answers);
END
$$;

-- cancel_job: cancel one. Answers [id, cancelled|requested|refused, state]. A job that is cancelled, asked to stop or being undone
-- already is not compared with p_version: that may be a repeat of the request that did it. p_mark: the class of jobs that are not cancelled for
-- their own sake; a held one keeps it until its end.
CREATE OR REPLACE FUNCTION tenure.cancel_job(
    p_id uuid, p_actor text, p_reason text, p_children boolean, p_now timestamptz, p_version text DEFAULT NULL, p_mark text DEFAULT NULL
) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_job tenure.job;
    v_answer text;
    v_is_undoing boolean;
BEGIN
    SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = p_id FOR UPDATE;
    v_answer := CASE
        WHEN v_job.state IN ('queued', 'waiting') THEN 'cancelled'
        WHEN v_job.state IN ('leased', 'running') THEN 'requested'
        ELSE 'refused'
    END;
    v_is_undoing := v_answer <> 'refused' AND v_job.step_token IS NOT NULL
        AND EXISTS (SELECT 1 FROM tenure.step AS s WHERE s.job_id = p_id AND s.key = '$undoing');
    IF p_version IS NOT NULL AND v_job.state <> 'cancelled' AND v_job.cancel_requested_at IS NULL AND NOT v_is_undoing THEN
        PERFORM tenure.refuse_outdated(v_job, p_version);
    END IF;
    IF v_is_undoing THEN
        v_answer := 'requested';  -- it is being undone already: nothing stops that, and its end is on record
    ELSIF v_answer = 'cancelled' AND v_job.step_token IS NOT NULL AND tenure.undo_instead(v_job, 'cancelled', coalesce(p_mark, 'cancelled'), p_reason, p_now) THEN
        v_answer := 'requested';
        UPDATE tenure.job AS j
        SET state = 'queued',
            attempt = 0,
            crashes = 0,
            failure_class = coalesce(p_mark, j.failure_class),
            waiting_for = NULL,
            run_at = coalesce(j.place_at, j.run_at),
            place_at = NULL,
            is_due = coalesce(j.place_at, j.run_at) <= p_now,
            updated_at = p_now
        WHERE j.id = p_id;
        PERFORM tenure.notify(ARRAY[v_job.queue]);
    ELSIF v_answer = 'cancelled' THEN
        UPDATE tenure.job AS j
        SET state = 'cancelled',
            waiting_for = NULL,
            place_at = NULL,
            cancel_requested_at = p_now,
            failure_class = coalesce(p_mark, 'cancelled'),
            finished_at = p_now,
            dedup_slot = CASE WHEN left(j.dedup_slot, 1) = 'a' THEN NULL ELSE j.dedup_slot END,
            updated_at = p_now
        WHERE j.id = p_id;
        IF v_job.group_id IS NOT NULL THEN
            PERFORM tenure.tell_group(v_job.group_id, 'cancelled', 1);
        END IF;
        IF v_job.workflow_id IS NOT NULL THEN
            PERFORM tenure.note_tasks(ARRAY[p_id], ARRAY[v_job.workflow_id]);
        END IF;
        IF v_job.step_token IS NOT NULL THEN
            PERFORM tenure.end_durable(ARRAY[p_id], p_now);
        END IF;
    ELSIF v_answer = 'requested' THEN
        UPDATE tenure.job AS j
        SET cancel_requested_at = coalesce(j.cancel_requested_at, p_now),
            failure_class = CASE WHEN j.cancel_requested_at IS NULL THEN coalesce(p_mark, j.failure_class) ELSE j.failure_class END,
            updated_at = p_now
        WHERE j.id = p_id;
        PERFORM pg_notify('tenure', 'cancel:' || v_job.lease_owner);
    END IF;
    IF v_answer <> 'refused' THEN
        PERFORM tenure.write_audit(p_now, p_actor, 'cancel', p_id::text, p_reason, json_build_object('state', v_job.state));
        PERFORM tenure.tell(CASE v_answer WHEN 'requested' THEN 'cancel_requested' ELSE 'cancelled' END, ARRAY[p_id], p_now);
        IF p_children THEN
            PERFORM tenure.put_flow_event('cancel', NULL, g.id, NULL, json_build_object('actor', p_actor, 'reason', p_reason))
            FROM tenure.job_group AS g
            WHERE g.parent_id = p_id AND coalesce(g.ended < g.total, true);
        END IF;
    END IF;
    RETURN json_build_array(p_id, v_answer, CASE v_answer WHEN 'cancelled' THEN 'cancelled' ELSE v_job.state END);
END
$$;

-- refuse_outdated: a job that has changed since the caller read it, when its version was p_version; null: whatever it is now.
CREATE OR REPLACE FUNCTION tenure.refuse_outdated(p_job tenure.job, p_version text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_version <> p_job.token || '.' || tenure.to_us(p_job.updated_at) THEN
        RAISE EXCEPTION 'Job % has changed since it was read, so nothing was changed. Read it again first.', p_job.id USING ERRCODE = 'TN011';
    END IF;
END
$$;

-- wake: waiting → queued, with the place it had before. Takes {"job_ids"} or {"waiting_for"}; answers the ids that were woken.
-- A job that a worker holds is not woken, but its next suspend under this grant goes straight back to queued. Rows are locked before
-- their state is looked at: one that is being suspended right now is seen as it is afterwards.
CREATE OR REPLACE FUNCTION tenure.wake(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_asked uuid[] := ARRAY(SELECT tenure.as_uuid(g.id) FROM json_array_elements_text(coalesce(p_request -> 'job_ids', '[]')) AS g(id));
    v_locked uuid[];
BEGIN
    PERFORM tenure.lock_runs(
        v_asked || ARRAY(SELECT j.id FROM tenure.job AS j WHERE j.state = 'waiting' AND j.waiting_for = p_request ->> 'waiting_for'));
    v_locked := ARRAY(
        SELECT j.id
        FROM tenure.job AS j
        WHERE j.id = ANY (v_asked) OR j.state = 'waiting' AND j.waiting_for = p_request ->> 'waiting_for'
        ORDER BY j.id
        FOR UPDATE
    );
    UPDATE tenure.job AS j SET wake_token = j.token WHERE j.id = ANY (v_locked) AND j.state IN ('leased', 'running');
    RETURN array_to_json(tenure.queue_waiting(v_locked, tenure.now()));
END
$$;

-- queue_waiting: of these jobs, locked by the caller, those that wait are queued, with the place they had before. Answers which.
-- `state || ''` is in no index: for `state` alone the planner may read the index of all jobs that wait, where these few are looked up by key.
CREATE OR REPLACE FUNCTION tenure.queue_waiting(p_ids uuid[], p_now timestamptz) RETURNS uuid[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_ids uuid[];
    v_queues text[];
BEGIN
    WITH woken AS (
        UPDATE tenure.job AS j
        SET state = 'queued',
            waiting_for = NULL,
            run_at = coalesce(j.place_at, p_now),
            place_at = NULL,
            is_due = coalesce(j.place_at, p_now) <= p_now,
            updated_at = p_now
        WHERE j.id = ANY (p_ids) AND j.state || '' = 'waiting'
        RETURNING j.id, j.queue
    )
    SELECT coalesce(array_agg(w.id ORDER BY w.id), '{}'), array_agg(DISTINCT w.queue) INTO v_ids, v_queues FROM woken AS w;
    IF cardinality(v_ids) > 0 THEN
        PERFORM tenure.tell('woken', v_ids, p_now);
        PERFORM tenure.notify(v_queues);
    END IF;
    RETURN v_ids;
END
$$;

-- revive: failed, dead, cancelled → queued, an operator's act. {"job_ids", "actor", "reason", "from_step", "versions": {id: version}} →
-- [[id, token, state, run_at], …] in the order of the ids; state null: left alone, and the audit row says why. A job that has changed since
-- its version was read is refused with the whole request.
CREATE OR REPLACE FUNCTION tenure.revive(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_id text;
    v_job tenure.job;
    v_from text;
    v_why text;
    v_answers json[] := '{}';
BEGIN
    PERFORM tenure.lock_runs(ARRAY(SELECT tenure.as_uuid(e.value) FROM json_array_elements_text(p_request -> 'job_ids') AS e));
    FOR v_id IN SELECT DISTINCT e.value COLLATE "C" FROM json_array_elements_text(p_request -> 'job_ids') AS e ORDER BY 1 LOOP
        SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = tenure.as_uuid(v_id) FOR UPDATE;
        PERFORM tenure.refuse_outdated(v_job, p_request -> 'versions' ->> v_id);
        v_from := v_job.state;
        v_why := coalesce(tenure.why_not_revive(v_job), CASE
            WHEN p_request ->> 'from_step' IS NOT NULL
                AND NOT EXISTS (SELECT 1 FROM tenure.step AS s WHERE s.job_id = v_job.id AND s.key = p_request ->> 'from_step')
            THEN 'it has no step ' || (p_request ->> 'from_step')
        END);
        IF v_why IS NULL THEN
            BEGIN
                v_job := tenure.queue_again(v_job, v_now);
            EXCEPTION WHEN unique_violation THEN
                v_why := 'another job holds its key';
            END;
        END IF;
        PERFORM tenure.write_audit(
            v_now, p_request ->> 'actor', 'revive', v_id, p_request ->> 'reason',
            json_build_object('from', v_from, 'to', CASE WHEN v_why IS NULL THEN 'queued' ELSE v_from END, 'why', v_why)
        );
        IF v_why IS NULL THEN
            IF v_job.step_token IS NOT NULL THEN
                PERFORM tenure.drop_steps(v_job.id, coalesce(min(s.ordinal), 2147483647), 2147483647)
                FROM tenure.step AS s
                WHERE s.job_id = v_job.id AND (s.key = p_request ->> 'from_step' OR EXISTS (
                    SELECT 1 FROM tenure.step AS u WHERE u.job_id = v_job.id AND (u.state = 'undone' OR u.key = '$undoing')));
            END IF;
            IF v_job.group_id IS NOT NULL THEN
                PERFORM tenure.tell_group(v_job.group_id, v_from, -1);
            END IF;
            UPDATE tenure.dead_letter AS d
            SET triage = 'manual_replay',
                triage_note = p_request ->> 'reason',
                triaged_at = v_now,
                triaged_by = p_request ->> 'actor'
            WHERE d.job_id = v_job.id AND d.triage = 'pending';
            v_answers := v_answers || json_build_array(v_id, v_job.token, v_job.state, tenure.to_us(v_job.run_at));
        ELSE
            v_answers := v_answers || json_build_array(v_id, coalesce(v_job.token, 0), NULL, NULL);
        END IF;
    END LOOP;
    RETURN array_to_json(v_answers);
END
$$;

-- why_not_revive: why this job must stay as it is; null if it may be revived. A row of nulls is a job that is not there.
CREATE OR REPLACE FUNCTION tenure.why_not_revive(p_job tenure.job) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT CASE
        WHEN (p_job).id IS NULL THEN 'there is no such job'
        WHEN (p_job).state NOT IN ('failed', 'dead', 'cancelled') THEN 'it is ' || (p_job).state
        WHEN (p_job).cleaned_at IS NOT NULL THEN 'its payload was pruned'
        WHEN (SELECT q.revive FROM tenure.queue AS q WHERE q.name = (p_job).queue) = 'clone' THEN 'its queue allows only a clone'
    END
$$;

-- queue_again: an ended job as if it had just been enqueued; its key is taken again, which the unique index may refuse.
CREATE OR REPLACE FUNCTION tenure.queue_again(p_job tenure.job, p_now timestamptz) RETURNS tenure.job
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_queue tenure.queue;
    v_job tenure.job;
BEGIN
    SELECT * INTO STRICT v_queue FROM tenure.queue AS q WHERE q.name = p_job.queue;
    UPDATE tenure.job AS j
    SET state = 'queued',
        attempt = 0,
        crashes = 0,
        suspicion = 0,
        run_at = p_now,
        is_due = true,
        finished_at = NULL,
        started_at = NULL,
        claimed_at = NULL,
        cancel_requested_at = NULL,
        failure_class = NULL,
        dedup_slot = CASE
            WHEN j.idempotency_key IS NULL OR j.dedup_slot IS NOT NULL THEN j.dedup_slot
            ELSE tenure.slot_of(v_queue.key_scope, v_queue.key_space, v_queue.profile, j.kind, j.idempotency_key)
        END,
        updated_at = p_now
    WHERE j.id = p_job.id
    RETURNING j.* INTO v_job;
    IF v_job.workflow_id IS NOT NULL THEN
        PERFORM tenure.note_tasks(ARRAY[v_job.id], ARRAY[v_job.workflow_id]);
    END IF;
    IF v_queue.events THEN
        PERFORM tenure.tell('revived', ARRAY[v_job.id], p_now);
    END IF;
    PERFORM tenure.notify(ARRAY[v_queue.name]);
    RETURN v_job;
END
$$;

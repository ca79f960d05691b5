-- settle_rest: outcomes that are more than a plain completion, one by one, in order of id. The caller holds the locks.
-- Each: {"i": id, "t": token, "o": complete|fail|reject|release|suspend|stop, "e": error, "c": class, "d": seconds, "w": waiting for,
--        "r", "s", "a": as for a completion, "jobs": an enqueue request, "events": [[kind, data]], "effects": [effect]}.
-- Answers [id, token, state, run_at_us] for each but plain successes.
CREATE OR REPLACE FUNCTION tenure.settle_rest(p_rest json, p_now timestamptz, p_cutoff timestamptz) RETURNS json[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_answers json[] := '{}';
    v_out record;
    v_job tenure.job;
    v_state text;
BEGIN
    FOR v_out IN
        SELECT g.*
        FROM json_to_recordset(p_rest) AS g(
            i uuid, t bigint, o text, e text, c text, d double precision, w text, r json, s text, a text, jobs json, events json, effects json)
        ORDER BY g.i
    LOOP
        SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = v_out.i AND j.token = v_out.t AND j.lease_until > p_cutoff FOR UPDATE;
        IF NOT FOUND THEN
            v_answers := v_answers || tenure.settled_before(v_out.i, v_out.t, v_out.o);
            CONTINUE;
        END IF;
        IF v_out.o = 'complete' AND v_job.cancel_requested_at IS NULL THEN
            PERFORM tenure.complete_with(v_job, v_out.r, v_out.s, v_out.a, v_out.jobs, v_out.events, v_out.effects, p_now);
            CONTINUE;
        END IF;
        v_state := tenure.finish(
            v_job, CASE v_out.o WHEN 'complete' THEN 'stop' ELSE v_out.o END, coalesce(v_out.c, 'error'), v_out.e, v_out.d, v_out.w, p_now);
        v_answers := v_answers || json_build_array(v_out.i, v_out.t, v_state,
            CASE WHEN v_state = 'queued' THEN (SELECT tenure.to_us(j.run_at) FROM tenure.job AS j WHERE j.id = v_out.i) END);
    END LOOP;
    RETURN v_answers;
END
$$;

-- complete_with: a success that carries follow-up jobs, events or effects. All of it is committed with the end, or none.
CREATE OR REPLACE FUNCTION tenure.complete_with(
    p_job tenure.job, p_result json, p_summary text, p_artifacts text, p_jobs json, p_events json, p_effects json, p_now timestamptz
) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_effect json;
BEGIN
    IF p_events IS NOT NULL THEN
        INSERT INTO tenure.event (at, kind, job_id, queue, data)
        SELECT p_now, e.value ->> 0, p_job.id, p_job.queue, e.value -> 1 FROM json_array_elements(p_events) AS e;
    END IF;
    IF p_effects IS NOT NULL THEN
        FOR v_effect IN SELECT f.value FROM json_array_elements(p_effects) AS f LOOP
            PERFORM tenure.record_effect(json_build_object('job_id', p_job.id, 'token', p_job.token, 'effect', v_effect));
        END LOOP;
    END IF;
    UPDATE tenure.job AS j
    SET state = 'succeeded',
        result = p_result,
        result_summary = p_summary,
        artifacts_path = coalesce(p_artifacts, j.artifacts_path),
        lease_owner = NULL,
        lease_until = NULL,
        started_at = coalesce(j.started_at, j.claimed_at),
        finished_at = p_now,
        dedup_slot = CASE WHEN left(j.dedup_slot, 1) = 'a' THEN NULL ELSE j.dedup_slot END,
        updated_at = p_now
    WHERE j.id = p_job.id;
    PERFORM tenure.tell('completed', ARRAY[p_job.id], p_now);
    IF p_jobs IS NOT NULL THEN
        PERFORM tenure.follow_up(p_jobs);
    END IF;
END
$$;

-- follow_up: enqueue what a completed job hands on. No gate is asked: a settle is never refused by one.
CREATE OR REPLACE FUNCTION tenure.follow_up(p_jobs json) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_group record;
    v_queue tenure.queue;
BEGIN
    FOR v_group IN SELECT g.queue, g.kind, g.jobs FROM json_to_recordset(p_jobs -> 'groups') AS g(queue text, kind text, jobs json) LOOP
        SELECT * INTO v_queue FROM tenure.queue AS q WHERE q.name = v_group.queue;
        IF NOT FOUND THEN
            PERFORM tenure.refuse_unknown_queue(v_group.queue);
        END IF;
        PERFORM tenure.put_group(v_queue, v_group.kind, json_array_length(v_group.jobs), v_group.jobs, NULL, false);
    END LOOP;
END
$$;

-- settled_before: an outcome found no lease. If this very grant was already ended by its worker, a repeated request is answered as the
-- first one was; otherwise the lease was lost.
CREATE OR REPLACE FUNCTION tenure.settled_before(p_id uuid, p_token bigint, p_move text) RETURNS json[]
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_outcome text;
    v_run_at timestamptz;
BEGIN
    IF p_move = 'complete' AND EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.id = p_id AND j.token = p_token AND j.state = 'succeeded') THEN
        RETURN '{}';
    END IF;
    SELECT a.outcome, a.run_at INTO v_outcome, v_run_at
    FROM tenure.attempt AS a
    WHERE a.job_id = p_id AND a.token = p_token;
    IF v_outcome IS NULL OR v_outcome = 'expired' OR p_move = 'complete' AND v_outcome <> 'cancelled' THEN
        RETURN ARRAY[json_build_array(p_id, p_token, NULL, NULL)];
    END IF;
    RETURN ARRAY[json_build_array(p_id, p_token, CASE v_outcome
            WHEN 'retried' THEN 'queued' WHEN 'released' THEN 'queued' WHEN 'suspended' THEN 'waiting' ELSE v_outcome END,
        tenure.to_us(v_run_at))];
END
$$;

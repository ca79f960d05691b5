-- revive: failed, dead, cancelled → queued, an operator's act. {"job_ids", "actor", "reason"} → [[id, token, state, run_at], …] in the
-- order of the ids; state null: left alone, and the audit row says why.
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
    FOR v_id IN SELECT DISTINCT e.value COLLATE "C" FROM json_array_elements_text(p_request -> 'job_ids') AS e ORDER BY 1 LOOP
        SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = tenure.as_uuid(v_id) FOR UPDATE;
        v_from := v_job.state;
        v_why := tenure.why_not_revive(v_job);
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
            UPDATE tenure.dead_letter AS d
            SET triage = 'manual_replay',
                triage_note = coalesce(p_request ->> 'reason', d.triage_note),
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
    IF v_queue.events THEN
        PERFORM tenure.tell('revived', ARRAY[v_job.id], p_now);
    END IF;
    PERFORM tenure.notify(v_queue, NULL);
    RETURN v_job;
END
$$;

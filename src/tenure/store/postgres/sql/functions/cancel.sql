-- cancel: queued and waiting jobs at once, held ones by request: their worker is told and settles them.
-- After 'cancelled' the job never starts; after 'requested' it never succeeds.
-- Takes {"job_ids", "actor", "reason"}; answers [id, cancelled|requested|refused, state] for each, in order of id.
CREATE OR REPLACE FUNCTION tenure.cancel(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_id uuid;
    v_job tenure.job;
    v_answer text;
    v_answers json[] := '{}';
BEGIN
    FOR v_id IN SELECT DISTINCT g.id::uuid FROM json_array_elements_text(p_request -> 'job_ids') AS g(id) ORDER BY 1 LOOP
        SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = v_id FOR UPDATE;
        v_answer := CASE
            WHEN v_job.state IN ('queued', 'waiting') THEN 'cancelled'
            WHEN v_job.state IN ('leased', 'running') THEN 'requested'
            ELSE 'refused'
        END;
        IF v_job.state IN ('queued', 'waiting') THEN
            UPDATE tenure.job AS j
            SET state = 'cancelled',
                waiting_for = NULL,
                cancel_requested_at = v_now,
                failure_class = 'cancelled',
                finished_at = v_now,
                dedup_slot = CASE WHEN left(j.dedup_slot, 1) = 'a' THEN NULL ELSE j.dedup_slot END,
                updated_at = v_now
            WHERE j.id = v_id;
        ELSIF v_job.state IN ('leased', 'running') THEN
            UPDATE tenure.job AS j SET cancel_requested_at = coalesce(j.cancel_requested_at, v_now), updated_at = v_now WHERE j.id = v_id;
            PERFORM pg_notify('tenure', 'cancel:' || v_job.lease_owner);
        END IF;
        IF v_answer <> 'refused' THEN
            INSERT INTO tenure.audit (at, actor, act, subject, reason, detail)
            VALUES (v_now, p_request ->> 'actor', 'cancel', v_id::text, p_request ->> 'reason', json_build_object('state', v_job.state));
            PERFORM tenure.tell(CASE v_answer WHEN 'requested' THEN 'cancel_requested' ELSE 'cancelled' END, ARRAY[v_id], v_now);
        END IF;
        v_answers := v_answers || json_build_array(v_id, v_answer, CASE v_answer WHEN 'cancelled' THEN 'cancelled' ELSE v_job.state END);
    END LOOP;
    RETURN array_to_json(v_answers);
END
$$;

-- wake: waiting → queued, due at once. Takes {"job_ids"} or {"waiting_for"}; answers the ids that were woken.
CREATE OR REPLACE FUNCTION tenure.wake(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_at tid[];
    v_woken json;
    v_ids uuid[];
    v_queue tenure.queue;
BEGIN
    SELECT array_agg(s.at) INTO v_at FROM (
        SELECT j.ctid AS at
        FROM tenure.job AS j
        WHERE j.state = 'waiting' AND (
            j.waiting_for = p_request ->> 'waiting_for'
            OR j.id IN (SELECT g.id::uuid FROM json_array_elements_text(coalesce(p_request -> 'job_ids', '[]')) AS g(id)))
        ORDER BY j.id
        FOR UPDATE
    ) AS s;
    WITH woken AS (
        UPDATE tenure.job AS j
        SET state = 'queued',
            waiting_for = NULL,
            run_at = v_now,
            is_due = true,
            updated_at = v_now
        WHERE j.ctid = ANY (v_at)
        RETURNING j.id
    )
    SELECT coalesce(json_agg(w.id), '[]'), array_agg(w.id ORDER BY w.id) INTO v_woken, v_ids FROM woken AS w;
    IF v_ids IS NOT NULL THEN
        PERFORM tenure.tell('woken', v_ids, v_now);
    END IF;
    FOR v_queue IN
        SELECT q.* FROM tenure.queue AS q
        WHERE q.name IN (SELECT j.queue FROM tenure.job AS j WHERE j.id IN (SELECT g.id::uuid FROM json_array_elements_text(v_woken) AS g(id)))
    LOOP
        PERFORM tenure.notify(v_queue, NULL);
    END LOOP;
    RETURN v_woken;
END
$$;

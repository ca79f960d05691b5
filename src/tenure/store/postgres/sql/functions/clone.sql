-- clone: {"job_ids": {old id: new id, …}, "actor", "reason"} → [[old id, new id, id of the job that holds the key or null], …].
--
-- A copy takes what was asked for, not what happened: payload, policy of the queue as it is now, references. Where a key counts only
-- while its job is active, the copy takes it too, and a job that holds it makes the copy a duplicate; where a key counts longer it
-- stays with the original. All or none.
CREATE OR REPLACE FUNCTION tenure.clone(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_pair record;
    v_job tenure.job;
    v_holder uuid;
    v_answers json[] := '{}';
BEGIN
    FOR v_pair IN SELECT e.key AS old_id, e.value AS new_id FROM json_each_text(p_request -> 'job_ids') AS e ORDER BY e.key COLLATE "C" LOOP
        SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = tenure.as_uuid(v_pair.old_id) FOR SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'There is no job %, so nothing was cloned.', v_pair.old_id USING ERRCODE = 'TN009';
        ELSIF v_job.finished_at IS NULL THEN
            RAISE EXCEPTION 'Job % is %; only a job that has ended can be cloned. Nothing was cloned.', v_pair.old_id, v_job.state
                USING ERRCODE = 'TN008';
        ELSIF v_job.cleaned_at IS NOT NULL THEN
            RAISE EXCEPTION 'Job % was pruned: its payload is gone, so it cannot be cloned. Nothing was cloned.', v_pair.old_id
                USING ERRCODE = 'TN008';
        END IF;
        v_holder := tenure.copy_job(v_job, v_pair.new_id::uuid, v_now);
        PERFORM tenure.write_audit(
            v_now, p_request ->> 'actor', 'clone', v_pair.old_id, p_request ->> 'reason',
            json_build_object('clone', v_pair.new_id, 'duplicate_of', v_holder)
        );
        v_answers := v_answers || json_build_array(v_pair.old_id, v_pair.new_id, v_holder);
    END LOOP;
    RETURN array_to_json(v_answers);
END
$$;

-- copy_job: insert the copy under its new id. Answers null, or the job that holds its key; a copy that is already there was made by
-- an earlier try of the same request.
CREATE OR REPLACE FUNCTION tenure.copy_job(p_job tenure.job, p_new_id uuid, p_now timestamptz) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_queue tenure.queue;
    v_slot text;
    v_holder uuid;
BEGIN
    SELECT * INTO STRICT v_queue FROM tenure.queue AS q WHERE q.name = p_job.queue;
    IF v_queue.key_scope = 'active' AND p_job.idempotency_key IS NOT NULL THEN
        v_slot := tenure.slot_of(v_queue.key_scope, v_queue.key_space, v_queue.profile, p_job.kind, p_job.idempotency_key);
    END IF;
    LOOP
        INSERT INTO tenure.job (
            id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile,
            payload, payload_hash, idempotency_key, dedup_slot, forbidden_keys,
            affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor, created_by_user_id,
            requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, backoff
        )
        VALUES (
            p_new_id, tenure.rank_of(p_job.priority, v_queue.priority_order, v_queue.aging_seconds, p_now), p_now, p_now, p_now,
            p_job.priority, p_job.max_attempts, true, p_job.queue, p_job.kind, v_queue.profile,
            p_job.payload, p_job.payload_hash, p_job.idempotency_key, v_slot, v_queue.forbidden_keys,
            p_job.affinity_key, p_job.concurrency_key, p_job.source_ref, p_job.target_ref, p_job.payload_ref, p_job.actor,
            p_job.created_by_user_id, p_job.requested_by_user_id, p_job.tenant, p_job.workflow_id, p_job.id, p_job.run_id,
            p_job.trace, p_job.backoff
        )
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            EXIT;
        END IF;
        IF EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.id = p_new_id) THEN
            RETURN NULL;
        END IF;
        SELECT j.id INTO v_holder FROM tenure.job AS j WHERE j.dedup_slot = v_slot;
        IF FOUND THEN
            RETURN v_holder;
        END IF;
        -- The holder ended between the two looks: its key is free again.
    END LOOP;
    IF v_queue.events THEN
        PERFORM tenure.tell('queued', ARRAY[p_new_id], p_now);
    END IF;
    PERFORM tenure.notify(v_queue, NULL);
    RETURN NULL;
END
$$;

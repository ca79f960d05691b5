-- Cancelling and retrying the tasks of a workflow, page by page. SQLite: workflow_fold.py.

-- cancel_page: `all` of what is open in a workflow that failed or was cancelled, `blocked` in one that drains; up to 250 tasks.
CREATE OR REPLACE FUNCTION tenure.cancel_page(p_event tenure.workflow_event, p_limit integer, p_now timestamptz) RETURNS tenure.task_change[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_phase text := CASE p_event.was WHEN 'all' THEN 'stopped' ELSE 'draining' END;
    v_limit integer := least(p_limit, 250);
    v_page tenure.task[];
    v_jobs uuid[];
    v_durable uuid[];
    v_plain uuid[];
    v_owner text;
BEGIN
    IF (SELECT w.phase FROM tenure.workflow AS w WHERE w.id = p_event.workflow_id) <> v_phase THEN
        RETURN '{}';  -- it was set going again meanwhile
    END IF;
    v_page := ARRAY(
        SELECT t
        FROM tenure.task AS t
        WHERE t.workflow_id = p_event.workflow_id AND t.outcome IS NULL AND t.job_id > p_event.after::uuid
        ORDER BY t.outcome, t.job_id
        LIMIT v_limit
    );
    v_jobs := ARRAY(SELECT p.job_id FROM unnest(v_page) AS p WHERE p_event.was = 'all' OR NOT p.is_released);
    SELECT coalesce(array_agg(o.id ORDER BY o.id) FILTER (WHERE o.step_token IS NOT NULL), '{}'),
        coalesce(array_agg(o.id ORDER BY o.id) FILTER (WHERE o.step_token IS NULL), '{}')
    INTO v_durable, v_plain
    FROM (SELECT j.id, j.step_token FROM tenure.job AS j WHERE j.id = ANY (v_jobs) AND j.finished_at IS NULL ORDER BY j.id FOR UPDATE) AS o;
    -- Jobs with steps may have children, and something to undo first.
    PERFORM tenure.cancel_job(d.id, 'orchestrator', 'Cancelled with its workflow.', true, p_now, NULL, 'workflow') FROM unnest(v_durable) AS d(id);
    PERFORM tenure.cancel_blocked(v_plain, 'workflow', 'Cancelled with its workflow.', p_now);
    FOR v_owner IN
        UPDATE tenure.job AS j
        SET cancel_requested_at = coalesce(j.cancel_requested_at, p_now),
            failure_class = CASE WHEN j.cancel_requested_at IS NULL THEN 'workflow' ELSE j.failure_class END,
            updated_at = p_now
        WHERE j.id = ANY (v_plain) AND j.state || '' IN ('leased', 'running')
        RETURNING j.lease_owner
    LOOP
        PERFORM pg_notify('tenure', 'cancel:' || v_owner);
    END LOOP;
    IF cardinality(v_page) >= v_limit THEN
        INSERT INTO tenure.workflow_event (kind, workflow_id, was, after)
        VALUES ('cancel', p_event.workflow_id, p_event.was, (v_page[v_limit]).job_id::text);
    END IF;
    RETURN tenure.count_tasks(tenure.look_at_tasks(v_jobs), p_now);
END
$$;

-- cancel_blocked: those of these jobs that no worker holds are cancelled. Answers which.
CREATE OR REPLACE FUNCTION tenure.cancel_blocked(p_jobs uuid[], p_class text, p_error text, p_now timestamptz) RETURNS uuid[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_done uuid[];
    v_durable uuid[];
BEGIN
    PERFORM 1 FROM tenure.job AS j WHERE j.id = ANY (p_jobs) ORDER BY j.id FOR UPDATE;
    WITH done AS (
        UPDATE tenure.job AS j
        SET state = 'cancelled',
            waiting_for = NULL,
            failure_class = p_class,
            last_error = p_error,
            finished_at = p_now,
            dedup_slot = CASE WHEN left(j.dedup_slot, 1) = 'a' THEN NULL ELSE j.dedup_slot END,
            updated_at = p_now
        WHERE j.id = ANY (p_jobs) AND j.state IN ('queued', 'waiting')
        RETURNING j.id, j.step_token
    )
    SELECT coalesce(array_agg(d.id ORDER BY d.id), '{}'), array_agg(d.id) FILTER (WHERE d.step_token IS NOT NULL)
    INTO v_done, v_durable
    FROM done AS d;
    IF v_durable IS NOT NULL THEN
        PERFORM tenure.end_durable(v_durable, p_now);
    END IF;
    PERFORM tenure.tell('cancelled', v_done, p_now);
    RETURN v_done;
END
$$;

-- retry_page: tasks with one outcome run again, page by page; then those with the next one. The last page sets the workflow going.
CREATE OR REPLACE FUNCTION tenure.retry_page(p_event tenure.workflow_event, p_now timestamptz) RETURNS tenure.task_change[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_task record;
    v_job tenure.job;
    v_count integer := 0;
    v_last uuid;
    v_changes tenure.task_change[] := '{}';
    v_next text := CASE p_event.was WHEN 'failed' THEN 'tolerated' WHEN 'tolerated' THEN 'cancelled' END;
BEGIN
    IF (SELECT w.phase FROM tenure.workflow AS w WHERE w.id = p_event.workflow_id) <> 'retrying' THEN
        RETURN '{}';
    END IF;
    FOR v_task IN
        SELECT t.*, (SELECT j.failure_class FROM tenure.job AS j WHERE j.id = t.job_id) AS failure_class
        FROM tenure.task AS t
        WHERE t.workflow_id = p_event.workflow_id AND (t.outcome, t.job_id) > (p_event.was, p_event.after::uuid) AND t.outcome <= p_event.was
        ORDER BY t.outcome, t.job_id
        LIMIT 250
    LOOP
        v_count := v_count + 1;
        v_last := v_task.job_id;
        -- A person cancelled this task alone; a fan-out follows its items.
        CONTINUE WHEN p_event.was = 'cancelled' AND v_task.failure_class IS DISTINCT FROM 'workflow';
        CONTINUE WHEN v_task.fan_out IS NOT NULL AND v_task.items IS NOT NULL AND p_event.was <> 'cancelled';
        IF v_task.fan_out IS NOT NULL OR NOT v_task.is_released THEN
            PERFORM tenure.block_again(ARRAY[v_task.job_id], p_now);
            IF v_task.is_released AND v_task.items IS NULL THEN
                INSERT INTO tenure.workflow_event (kind, workflow_id, job_id, after)
                VALUES ('expand', v_task.workflow_id, v_task.job_id, '0');
            END IF;
        ELSE
            PERFORM tenure.revive(json_build_object(
                'job_ids', json_build_array(v_task.job_id), 'actor', 'orchestrator', 'reason', 'retry of workflow ' || v_task.workflow_id));
            SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = v_task.job_id;
            CONTINUE WHEN v_job.finished_at IS NOT NULL;
        END IF;
        v_changes := v_changes || ROW(v_task.job_id, v_task.workflow_id, p_event.was, NULL, v_task.parent, NULL)::tenure.task_change;
    END LOOP;
    v_changes := tenure.count_tasks(v_changes, p_now);
    IF v_count = 250 THEN
        INSERT INTO tenure.workflow_event (kind, workflow_id, was, after) VALUES ('retry', p_event.workflow_id, p_event.was, v_last::text);
    ELSIF v_next IS NOT NULL THEN
        INSERT INTO tenure.workflow_event (kind, workflow_id, was, after)
        VALUES ('retry', p_event.workflow_id, v_next, '00000000-0000-0000-0000-000000000000');
    ELSE
        UPDATE tenure.workflow AS w
        SET state = 'running', phase = 'forward', error = NULL, finished_at = NULL, updated_at = p_now
        WHERE w.id = p_event.workflow_id;
        INSERT INTO tenure.workflow_event (kind, workflow_id) VALUES ('release', p_event.workflow_id);
    END IF;
    RETURN v_changes;
END
$$;

-- block_again: jobs that ended without having run wait for what they need again.
CREATE OR REPLACE FUNCTION tenure.block_again(p_jobs uuid[], p_now timestamptz) RETURNS void
LANGUAGE sql
AS $$
    UPDATE tenure.job AS j
    SET state = 'waiting',
        waiting_for = 'needs',
        run_at = 'infinity',
        is_due = false,
        attempt = 0,
        finished_at = NULL,
        failure_class = NULL,
        last_error = NULL,
        result = NULL,
        cancel_requested_at = NULL,
        updated_at = p_now
    WHERE j.id = ANY (p_jobs) AND j.state IN ('cancelled', 'failed', 'succeeded')
$$;

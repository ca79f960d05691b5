-- Fan-outs: items are made page by page, and a fan-out ends with them. SQLite: workflow_fold.py.

-- expand_task: a page of a fan-out's items, from the result of the task that it fans out over.
CREATE OR REPLACE FUNCTION tenure.expand_task(
    p_event tenure.workflow_event, p_limit integer, p_now timestamptz, OUT made integer, OUT changes tenure.task_change[]
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_task tenure.task;
    v_job tenure.job;
    v_after integer := p_event.after::integer;
    v_items json;
    v_jobs json;
    v_ids uuid[];
BEGIN
    made := 0;
    changes := '{}';
    SELECT * INTO v_task FROM tenure.task AS t WHERE t.job_id = p_event.job_id;
    IF NOT FOUND OR v_task.outcome IS NOT NULL THEN
        RETURN;
    END IF;
    IF v_after = 0 AND (SELECT w.phase FROM tenure.workflow AS w WHERE w.id = v_task.workflow_id) <> 'forward' THEN
        UPDATE tenure.task AS t SET is_released = false WHERE t.job_id = v_task.job_id;
        RETURN;
    END IF;
    SELECT * INTO STRICT v_job FROM tenure.job AS j WHERE j.id = v_task.job_id;
    SELECT j.result #> ARRAY(SELECT p.part FROM json_array_elements_text(v_task.fan_out -> 'path') WITH ORDINALITY AS p(part, nth) ORDER BY p.nth)
    INTO v_items
    FROM tenure.job AS j
    WHERE j.id = (v_task.fan_out ->> 'of')::uuid;
    IF json_typeof(v_items) IS DISTINCT FROM 'array' THEN
        changes := tenure.end_fan_out(v_task.job_id, 'The result of the task it fans out over has no list at result'
            || coalesce((SELECT string_agg('[' || CASE json_typeof(p.part) WHEN 'string' THEN quote_literal(p.part #>> '{}') ELSE p.part::text END || ']', ''
                ORDER BY p.nth) FROM json_array_elements(v_task.fan_out -> 'path') WITH ORDINALITY AS p(part, nth)), '') || '.', NULL, p_now);
        RETURN;
    END IF;
    SELECT json_agg(json_build_object(
            'i', n.id, 'p', v_job.payload::jsonb || jsonb_build_object('item', n.item, 'index', n.place), 'r', v_job.priority,
            'm', v_job.max_attempts, 'x', json_strip_nulls(json_build_object(
                'workflow_id', v_task.workflow_id, 'parent_id', v_task.job_id, 'tenant', v_job.tenant, 'actor', v_job.actor)))
            ORDER BY n.place),
        array_agg(n.id ORDER BY n.place)
    INTO v_jobs, v_ids
    FROM (
        -- Tasks are listed by id, so those of the items rise.
        SELECT i.id, e.value AS item, e.nth - 1 AS place
        FROM json_array_elements(v_items) WITH ORDINALITY AS e(value, nth)
        JOIN unnest(ARRAY(
            SELECT tenure.new_id(p_now) AS id
            FROM generate_series(1, least(p_limit, json_array_length(v_items) - v_after))
            ORDER BY id
        )) WITH ORDINALITY AS i(id, nth) ON i.nth = e.nth - v_after
    ) AS n;
    made := coalesce(cardinality(v_ids), 0);
    IF made > 0 THEN
        BEGIN
            PERFORM tenure.put_jobs(json_build_array(json_build_object('queue', v_job.queue, 'kind', v_job.kind, 'jobs', v_jobs)), false,
                p_login => v_job.enqueued_by);
        EXCEPTION WHEN OTHERS THEN
            IF v_after > 0 OR NOT tenure.is_refusal(SQLSTATE) THEN
                RAISE;  -- items of earlier pages are at work
            END IF;
            made := 0;
            changes := tenure.end_fan_out(v_task.job_id, SQLERRM, NULL, p_now);
            RETURN;
        END;
        INSERT INTO tenure.task (job_id, workflow_id, name, depth, is_optional, is_released, parent)
        SELECT n.id, v_task.workflow_id, v_task.name || '/' || (v_after + n.nth - 1), v_task.depth + 1, true, true, v_task.job_id
        FROM unnest(v_ids) WITH ORDINALITY AS n(id, nth);
        UPDATE tenure.workflow AS w SET total = w.total + made, updated_at = p_now WHERE w.id = v_task.workflow_id;
    END IF;
    UPDATE tenure.task AS t
    SET items = json_array_length(v_items),
        items_made = v_after + made
    WHERE t.job_id = v_task.job_id;
    IF v_after + made < json_array_length(v_items) THEN
        INSERT INTO tenure.workflow_event (kind, workflow_id, job_id, after)
        VALUES ('expand', v_task.workflow_id, v_task.job_id, (v_after + made)::text);
    ELSE
        changes := tenure.end_fan_outs(ARRAY[v_task.job_id], p_now);
    END IF;
END
$$;

-- end_fan_outs: fan-outs whose items ended or were revived: ended when all have, open again when one is. Answers what changed by it.
CREATE OR REPLACE FUNCTION tenure.end_fan_outs(p_jobs uuid[], p_now timestamptz) RETURNS tenure.task_change[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_task tenure.task;
    v_walk tenure.task_change[] := '{}';
    v_is_over boolean;
    v_is_beyond boolean;
BEGIN
    FOR v_task IN SELECT t.* FROM tenure.task AS t WHERE t.job_id = ANY (p_jobs) AND t.items IS NOT NULL ORDER BY t.job_id LOOP
        v_is_over := v_task.items_made = v_task.items AND v_task.items_ended >= v_task.items;
        IF v_is_over AND v_task.outcome IS NULL THEN
            v_is_beyond := CASE
                WHEN v_task.fan_out ->> 'tolerate_ppm' IS NOT NULL
                    THEN v_task.items_failed::bigint * 1000000 > (v_task.fan_out ->> 'tolerate_ppm')::bigint * v_task.items
                ELSE v_task.items_failed > coalesce((v_task.fan_out ->> 'tolerate_count')::integer, 0)
            END;
            v_walk := v_walk || tenure.end_fan_out(v_task.job_id,
                CASE WHEN v_is_beyond THEN format('%s of %s items did not succeed, more than it tolerates.', v_task.items_failed, v_task.items) END,
                json_build_object('items', v_task.items, 'failed', v_task.items_failed), p_now);
        ELSIF NOT v_is_over AND v_task.outcome IN ('succeeded', 'failed', 'tolerated') THEN
            PERFORM tenure.block_again(ARRAY[v_task.job_id], p_now);
            v_walk := v_walk || tenure.count_tasks(
                ARRAY[ROW(v_task.job_id, v_task.workflow_id, v_task.outcome, NULL, NULL, NULL)::tenure.task_change], p_now);
        END IF;
    END LOOP;
    RETURN v_walk;
END
$$;

-- end_fan_out: a fan-out has no worker: it ends with its items, or because it can have none.
CREATE OR REPLACE FUNCTION tenure.end_fan_out(p_job uuid, p_error text, p_result json, p_now timestamptz) RETURNS tenure.task_change[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_is_durable boolean;
BEGIN
    UPDATE tenure.job AS j
    SET state = CASE WHEN p_error IS NULL THEN 'succeeded' ELSE 'failed' END,
        waiting_for = NULL,
        result = p_result,
        failure_class = CASE WHEN p_error IS NOT NULL THEN 'items' END,
        last_error = p_error,
        finished_at = p_now,
        updated_at = p_now
    WHERE j.id = p_job AND j.state || '' = 'waiting'
    RETURNING j.step_token IS NOT NULL INTO v_is_durable;
    IF NOT FOUND THEN
        RETURN '{}';
    ELSIF v_is_durable THEN
        PERFORM tenure.end_durable(ARRAY[p_job], p_now);
    END IF;
    PERFORM tenure.tell(CASE WHEN p_error IS NULL THEN 'completed' ELSE 'failed' END, ARRAY[p_job], p_now);
    RETURN tenure.count_tasks(tenure.look_at_tasks(ARRAY[p_job]), p_now);
END
$$;

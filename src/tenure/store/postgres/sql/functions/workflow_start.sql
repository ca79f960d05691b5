-- Starting workflows, page by page, and joining them. The rules stand in store/workflows.py; the SQLite engine has them in the same words
-- in workflow_start.py.

-- start_workflow: {"workflow": {…}, "jobs": an enqueue request, "tasks": [[job, name, needs, depth, optional, fan_out], …],
-- "edges": [[src, dst, kind], …], "last": bool} → {"id", "state", "duplicate"}. One page; nothing runs before the last.
CREATE OR REPLACE FUNCTION tenure.start_workflow(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_new json := p_request -> 'workflow';
    v_id uuid := (v_new ->> 'id')::uuid;
    v_slot text := (v_new ->> 'name') || chr(31) || (v_new ->> 'key');
    -- As an array, so that jobs are looked up by key: joined, the planner may read the JSON once for every job.
    v_jobs uuid[] := ARRAY(SELECT (g.value ->> 0)::uuid FROM json_array_elements(coalesce(p_request -> 'tasks', '[]')) AS g);
    v_run tenure.workflow;
    v_sent integer;
    v_is_astray boolean;
    v_is_back boolean;
BEGIN
    IF num_nulls(v_id, v_new ->> 'name', v_new ->> 'profile', v_new ->> 'total', v_new ->> 'policy', v_new ->> 'data') > 0 THEN
        RAISE EXCEPTION 'A workflow needs id, name, profile, total, policy and data. Nothing was started.' USING ERRCODE = 'TN007';
    END IF;
    PERFORM tenure.refuse_policy(v_id, v_new -> 'policy');
    IF (v_new ->> 'total')::bigint NOT BETWEEN 1 AND 1000000 THEN
        RAISE EXCEPTION 'Workflow % is to have % tasks; a run has 1 to 1,000,000. Nothing was started. Split it into several.', v_id, v_new ->> 'total'
            USING ERRCODE = 'TN007';
    END IF;
    INSERT INTO tenure.workflow (
        id, profile, kind, phase, total, missing, policy, key, dedup_slot, digest, due_at, started_by, actor, tenant, data, created_at,
        updated_at
    )
    VALUES (
        v_id, v_new ->> 'profile', v_new ->> 'name', 'loading', (v_new ->> 'total')::integer, (v_new ->> 'total')::integer,
        v_new -> 'policy', v_new ->> 'key', v_slot, v_new ->> 'digest',
        v_now + (v_new ->> 'deadline')::double precision * interval '1 second', tenure.login(), v_new ->> 'actor', v_new ->> 'tenant',
        v_new -> 'data', v_now, v_now
    )
    ON CONFLICT DO NOTHING;
    IF v_slot IS NOT NULL THEN
        SELECT * INTO v_run FROM tenure.workflow AS w WHERE w.dedup_slot = v_slot;
        IF NOT tenure.is_known(v_run.started_by) THEN
            RAISE EXCEPTION 'Key % of workflow % is held by a run of another login. Nothing was started. Use another key.',
                quote_literal(v_new ->> 'key'), quote_literal(v_new ->> 'name') USING ERRCODE = 'TN004';
        END IF;
        IF v_run.digest IS DISTINCT FROM v_new ->> 'digest' THEN
            RAISE EXCEPTION 'Key % of workflow % belongs to run %, which has another graph. Nothing was started. Use another key, or start the same graph.',
                quote_literal(v_new ->> 'key'), quote_literal(v_new ->> 'name'), v_run.id USING ERRCODE = 'TN004',
                DETAIL = json_build_object('key', v_new ->> 'key', 'kind', v_new ->> 'name', 'holder', v_run.id)::text;
        END IF;
        IF v_run.id <> v_id THEN
            RETURN json_build_object('id', v_run.id, 'state', v_run.state, 'duplicate', v_run.phase <> 'loading');
        END IF;
    END IF;
    SELECT * INTO STRICT v_run FROM tenure.workflow AS w WHERE w.id = v_id FOR UPDATE;
    IF NOT tenure.is_known(v_run.started_by) THEN
        RAISE EXCEPTION 'The id % belongs to another workflow. Nothing was started. Make a new id for each.', v_id USING ERRCODE = 'TN007';
    END IF;
    IF v_run.phase = 'loading' THEN
        IF NOT v_jobs <@ ARRAY(
            SELECT (n.value ->> 'i')::uuid
            FROM json_array_elements(coalesce(p_request -> 'jobs' -> 'groups', '[]')) AS g
            CROSS JOIN LATERAL json_array_elements(g.value -> 'jobs') AS n
        ) THEN
            RAISE EXCEPTION 'Workflow %: a task names a job that does not come with it. Nothing was started. Send each task with its own new job.', v_id
                USING ERRCODE = 'TN007';
        END IF;
        IF p_request -> 'jobs' IS NOT NULL THEN
            IF p_request -> 'jobs' -> 'create' IS NOT NULL THEN
                PERFORM tenure.declare_queues(p_request -> 'jobs' -> 'create');
            END IF;
            PERFORM tenure.put_jobs(p_request -> 'jobs' -> 'groups', true);
            -- A repeated page finds them waiting, or further on.
            UPDATE tenure.job AS j
            SET state = 'waiting',
                waiting_for = 'needs',
                run_at = 'infinity',
                is_due = false
            WHERE j.id = ANY (v_jobs) AND j.state || '' = 'queued' AND j.token = 0 AND NOT j.is_due;  -- see tenure.queue_waiting
            PERFORM tenure.refuse_names(v_id, p_request -> 'tasks');
            PERFORM tenure.refuse_fan_outs(v_id, p_request -> 'tasks');
            INSERT INTO tenure.task (job_id, workflow_id, name, needs, depth, is_optional, fan_out)
            SELECT (g.value ->> 0)::uuid, v_id, g.value ->> 1, (g.value ->> 2)::integer, (g.value ->> 3)::integer, (g.value ->> 4)::boolean,
                CASE WHEN json_typeof(g.value -> 5) = 'object' THEN g.value -> 5 END
            FROM json_array_elements(p_request -> 'tasks') AS g
            ON CONFLICT (job_id) DO NOTHING;
            GET DIAGNOSTICS v_sent = ROW_COUNT;
            UPDATE tenure.workflow AS w SET missing = w.missing - v_sent WHERE w.id = v_id RETURNING w.missing INTO v_run.missing;
        END IF;
        IF p_request -> 'edges' IS NOT NULL THEN
            -- Each end is looked up by its key alone: with the workflow beside it, or as a join, the planner may read all tasks for each edge.
            SELECT coalesce(bool_or(s.workflow_id IS DISTINCT FROM v_id OR d.workflow_id IS DISTINCT FROM v_id), false), bool_or(s.depth >= d.depth)
            INTO v_is_astray, v_is_back
            FROM json_array_elements(p_request -> 'edges') AS g
            LEFT JOIN LATERAL (
                SELECT t.workflow_id, t.depth FROM tenure.task AS t WHERE t.job_id = (g.value ->> 0)::uuid OFFSET 0
            ) AS s ON true
            LEFT JOIN LATERAL (
                SELECT t.workflow_id, t.depth FROM tenure.task AS t WHERE t.job_id = (g.value ->> 1)::uuid OFFSET 0
            ) AS d ON true;
            IF v_is_astray THEN
                RAISE EXCEPTION 'Workflow %: an edge names a job that is no task of this workflow. Nothing was started. Send the tasks first.', v_id
                    USING ERRCODE = 'TN007';
            ELSIF v_is_back THEN
                RAISE EXCEPTION 'Workflow %: a task waits for one that is not before it by depth, so the graph may have a circle. Nothing was started. Give each task a greater depth than all that it waits for.', v_id
                    USING ERRCODE = 'TN007';
            END IF;
            INSERT INTO tenure.edge (src, dst, kind)
            SELECT (g.value ->> 0)::uuid, (g.value ->> 1)::uuid, g.value ->> 2
            FROM json_array_elements(p_request -> 'edges') AS g
            ON CONFLICT DO NOTHING;
        END IF;
        IF (p_request ->> 'last')::boolean AND v_run.state = 'running' THEN
            IF v_run.missing <> 0 THEN
                RAISE EXCEPTION 'Workflow % is to have % tasks, and others were sent. Nothing was started. Send every task before the last page.', v_id, v_run.total
                    USING ERRCODE = 'TN007';
            END IF;
            UPDATE tenure.workflow AS w SET phase = 'forward', updated_at = v_now WHERE w.id = v_id;
            INSERT INTO tenure.workflow_event (kind, workflow_id) VALUES ('release', v_id);
            PERFORM tenure.fold_workflows(500, v_now, v_id);
        END IF;
    END IF;
    RETURN json_build_object('id', v_id, 'state', (SELECT w.state FROM tenure.workflow AS w WHERE w.id = v_id), 'duplicate', false);
END
$$;

-- refuse_policy: refuse a policy by which no workflow can be judged. model/workflow.py says what there may be.
CREATE OR REPLACE FUNCTION tenure.refuse_policy(p_workflow_id uuid, p_policy json) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_ladder json := coalesce(p_policy -> 'ladder', '[]');
    v_wrong text;
BEGIN
    v_wrong := CASE
        WHEN json_typeof(p_policy) <> 'object' THEN 'it is no object'
        WHEN p_policy ->> 'fail' IS NOT NULL AND NOT tenure.is_threshold(p_policy -> 'fail')
            THEN '`fail` is neither {"count": n} nor {"ppm": parts of a million, "at_least": n}'
        WHEN coalesce(p_policy ->> 'on_breach', 'fail') NOT IN ('fail', 'drain', 'continue', 'escalate')
            THEN '`on_breach` is none of fail, drain, continue, escalate'
        WHEN json_typeof(v_ladder) <> 'array' THEN '`ladder` is no list of up to 5 levels'
        WHEN json_array_length(v_ladder) > 5 THEN '`ladder` is no list of up to 5 levels'
        WHEN p_policy ->> 'on_breach' = 'escalate' AND json_array_length(v_ladder) = 0 THEN '`ladder` says no one who is asked'
        WHEN EXISTS (
            SELECT 1 FROM json_array_elements(v_ladder) AS l
            WHERE json_typeof(l.value) <> 'object' OR (l.value ->> 'person' IS NULL) = (num_nulls(l.value ->> 'queue', l.value ->> 'kind') > 0)
                OR CASE coalesce(json_typeof(l.value -> 'after'), 'null') WHEN 'number' THEN (l.value ->> 'after')::numeric <= 0 WHEN 'null' THEN false ELSE true END
        ) THEN 'a level of `ladder` has neither `person` nor `queue` and `kind`, or an `after` that is no number of seconds'
        WHEN coalesce(json_typeof(p_policy -> 'undo'), 'object') <> 'object' THEN '`undo` is no object of names and kinds'
    END;
    IF v_wrong IS NOT NULL THEN
        RAISE EXCEPTION 'Workflow %: by its policy it cannot be judged: %. Nothing was started.', p_workflow_id, v_wrong USING ERRCODE = 'TN007';
    END IF;
END
$$;

-- refuse_fan_outs: refuse fan-outs (of tasks as start_workflow takes them) that could not be expanded.
CREATE OR REPLACE FUNCTION tenure.refuse_fan_outs(p_workflow_id uuid, p_tasks json) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_name text;
BEGIN
    SELECT g.value ->> 1 INTO v_name
    FROM json_array_elements(p_tasks) AS g
    WHERE json_typeof(g.value -> 5) = 'object' AND (
        tenure.as_uuid(g.value -> 5 ->> 'of') IS NULL OR json_typeof(g.value -> 5 -> 'path') IS DISTINCT FROM 'array'
        OR coalesce(g.value -> 5 ->> 'tolerate_count', g.value -> 5 ->> 'tolerate_ppm', '0') !~ '^[0-9]{1,9}$'
        OR (SELECT json_typeof(j.payload) FROM tenure.job AS j WHERE j.id = (g.value ->> 0)::uuid) <> 'object')
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'Workflow %: the fan-out % needs `of` (a job), `path` (a list), `tolerate_count` or `tolerate_ppm`, and an object as payload. Nothing was started.',
            p_workflow_id, quote_literal(v_name) USING ERRCODE = 'TN007';
    END IF;
END
$$;

-- refuse_names: refuse tasks (as start_workflow takes them) without a name, or with one that another task of the workflow has.
CREATE OR REPLACE FUNCTION tenure.refuse_names(p_workflow_id uuid, p_tasks json) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_task record;
BEGIN
    FOR v_task IN
        SELECT (g.value ->> 0)::uuid AS id, g.value ->> 1 AS name, count(*) OVER (PARTITION BY g.value ->> 1) AS times
        FROM json_array_elements(coalesce(p_tasks, '[]')) AS g
    LOOP
        IF coalesce(btrim(v_task.name), '') = '' THEN
            RAISE EXCEPTION 'Workflow %: a task has no name. Nothing was started. Name each task.', p_workflow_id USING ERRCODE = 'TN007';
        ELSIF v_task.times > 1
            OR (
                SELECT t.workflow_id = p_workflow_id AND t.name = v_task.name AND t.job_id <> v_task.id
                FROM tenure.task AS t
                WHERE (t.workflow_id, t.name) >= (p_workflow_id, v_task.name)
                ORDER BY t.workflow_id, t.name
                LIMIT 1)
        THEN
            RAISE EXCEPTION 'Workflow %: two tasks are named %. Nothing was started. Give each its own name.', p_workflow_id, quote_literal(v_task.name)
                USING ERRCODE = 'TN007';
        END IF;
    END LOOP;
END
$$;

-- join_workflow: {"jobs": an enqueue request}, jobs that may name a workflow → as enqueue answers.
CREATE OR REPLACE FUNCTION tenure.join_workflow(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_answer json;
    v_id uuid;
BEGIN
    -- The workflows are locked first, as everywhere; the jobs are new, so no one waits for those.
    PERFORM 1 FROM tenure.workflow AS w
    WHERE w.id = ANY (ARRAY(
        SELECT (s.value -> 'x' ->> 'workflow_id')::uuid
        FROM json_array_elements(p_request -> 'jobs' -> 'groups') AS g
        CROSS JOIN LATERAL json_array_elements(g.value -> 'jobs') AS s
    ))
    ORDER BY w.id
    FOR UPDATE;
    v_answer := tenure.enqueue(p_request -> 'jobs');
    FOR v_id IN
        SELECT (s.value ->> 'i')::uuid
        FROM json_array_elements(p_request -> 'jobs' -> 'groups') AS g
        CROSS JOIN LATERAL json_array_elements(g.value -> 'jobs') AS s
        ORDER BY 1
    LOOP
        PERFORM tenure.add_task(v_id);
    END LOOP;
    RETURN v_answer;
END
$$;

-- add_task: a job that was just created becomes a task of the workflow that it names, if there is one. Refused if that has ended.
CREATE OR REPLACE FUNCTION tenure.add_task(p_job uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_job tenure.job;
    v_run tenure.workflow;
BEGIN
    SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = p_job;
    IF v_job.workflow_id IS NULL THEN
        RETURN;
    END IF;
    SELECT * INTO v_run FROM tenure.workflow AS w WHERE w.id = v_job.workflow_id FOR UPDATE;
    IF NOT FOUND OR EXISTS (SELECT 1 FROM tenure.task AS t WHERE t.job_id = p_job) THEN
        RETURN;
    END IF;
    IF NOT tenure.is_known(v_run.started_by) THEN
        RAISE EXCEPTION 'Workflow % belongs to another login, so no task can join it. Nothing was created.', v_run.id USING ERRCODE = 'TN010';
    END IF;
    IF v_run.state IN ('completed', 'failed', 'cancelled') THEN
        RAISE EXCEPTION 'Workflow % is %, so no task can join it. Nothing was created. Start a new one, or create the task without workflow_id.',
            v_run.id, v_run.state USING ERRCODE = 'TN008';
    END IF;
    INSERT INTO tenure.task (job_id, workflow_id, name, is_released) VALUES (p_job, v_run.id, v_job.kind || '/' || p_job, true);
    UPDATE tenure.workflow AS w SET total = w.total + 1, updated_at = tenure.now() WHERE w.id = v_run.id;
END
$$;

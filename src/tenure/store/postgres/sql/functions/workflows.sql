-- Workflows: start, fold the ends of tasks, release, skip, cancel, retry, escalate. The rules stand in store/workflows.py; the SQLite
-- engine has them in the same words in workflows.py.

-- note_tasks: jobs that name a workflow have ended or were revived. Insert-only: an exchange waits for nothing here.
CREATE OR REPLACE FUNCTION tenure.note_tasks(p_jobs uuid[], p_workflows uuid[]) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO tenure.workflow_event (kind, workflow_id, job_id)
    SELECT 'look', n.workflow_id, n.job_id FROM unnest(p_jobs, p_workflows) AS n(job_id, workflow_id)
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
            OR EXISTS (SELECT 1 FROM tenure.task AS t WHERE t.workflow_id = p_workflow_id AND t.name = v_task.name AND t.job_id <> v_task.id)
        THEN
            RAISE EXCEPTION 'Workflow %: two tasks are named %. Nothing was started. Give each its own name.', p_workflow_id, quote_literal(v_task.name)
                USING ERRCODE = 'TN007';
        END IF;
    END LOOP;
END
$$;

-- start_workflow: {"workflow": {…}, "jobs": an enqueue request, "tasks": [[job, name, needs, depth, optional, fan_out], …],
-- "edges": [[src, dst, kind], …], "last": bool} → {"id", "state", "duplicate"}. One page; nothing runs before the last.
CREATE OR REPLACE FUNCTION tenure.start_workflow(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
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
BEGIN
    IF num_nulls(v_id, v_new ->> 'name', v_new ->> 'profile', v_new ->> 'total', v_new ->> 'policy', v_new ->> 'data') > 0 THEN
        RAISE EXCEPTION 'A workflow needs id, name, profile, total, policy and data. Nothing was started.' USING ERRCODE = 'TN007';
    END IF;
    IF (v_new ->> 'total')::bigint NOT BETWEEN 1 AND 1000000 THEN
        RAISE EXCEPTION 'Workflow % is to have % tasks; a run has 1 to 1,000,000. Nothing was started. Split it into several.', v_id, v_new ->> 'total'
            USING ERRCODE = 'TN007';
    END IF;
    INSERT INTO tenure.workflow (
        id, profile, kind, phase, total, policy, key, dedup_slot, digest, due_at, started_by, actor, tenant, data, created_at, updated_at
    )
    VALUES (
        v_id, v_new ->> 'profile', v_new ->> 'name', 'loading', (v_new ->> 'total')::integer, v_new -> 'policy', v_new ->> 'key', v_slot,
        v_new ->> 'digest', v_now + (v_new ->> 'deadline')::double precision * interval '1 second', tenure.login(), v_new ->> 'actor',
        v_new ->> 'tenant', v_new -> 'data', v_now, v_now
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
            WHERE j.id = ANY (v_jobs) AND j.state = 'queued' AND j.token = 0 AND NOT j.is_due;
            PERFORM tenure.refuse_names(v_id, p_request -> 'tasks');
            INSERT INTO tenure.task (job_id, workflow_id, name, needs, depth, is_optional, fan_out)
            SELECT (g.value ->> 0)::uuid, v_id, g.value ->> 1, (g.value ->> 2)::integer, (g.value ->> 3)::integer, (g.value ->> 4)::boolean,
                CASE WHEN json_typeof(g.value -> 5) = 'object' THEN g.value -> 5 END
            FROM json_array_elements(p_request -> 'tasks') AS g
            ON CONFLICT (job_id) DO NOTHING;
        END IF;
        IF p_request -> 'edges' IS NOT NULL THEN
            IF EXISTS (
                SELECT 1
                FROM json_array_elements(p_request -> 'edges') AS g
                CROSS JOIN LATERAL (VALUES ((g.value ->> 0)::uuid), ((g.value ->> 1)::uuid)) AS e(id)
                WHERE NOT EXISTS (SELECT 1 FROM tenure.task AS t WHERE t.job_id = e.id AND t.workflow_id = v_id)
            ) THEN
                RAISE EXCEPTION 'Workflow %: an edge names a job that is no task of this workflow. Nothing was started. Send the tasks first.', v_id
                    USING ERRCODE = 'TN007';
            END IF;
            IF EXISTS (
                SELECT 1
                FROM json_array_elements(p_request -> 'edges') AS g
                JOIN tenure.task AS s ON s.job_id = (g.value ->> 0)::uuid
                JOIN tenure.task AS d ON d.job_id = (g.value ->> 1)::uuid
                WHERE s.depth >= d.depth
            ) THEN
                RAISE EXCEPTION 'Workflow %: a task waits for one that is not before it by depth, so the graph may have a circle. Nothing was started. Give each task a greater depth than all that it waits for.', v_id
                    USING ERRCODE = 'TN007';
            END IF;
            INSERT INTO tenure.edge (src, dst, kind)
            SELECT (g.value ->> 0)::uuid, (g.value ->> 1)::uuid, g.value ->> 2
            FROM json_array_elements(p_request -> 'edges') AS g
            ON CONFLICT DO NOTHING;
        END IF;
        IF (p_request ->> 'last')::boolean AND v_run.state = 'running' THEN
            IF (SELECT count(*) FROM tenure.task AS t WHERE t.workflow_id = v_id) <> v_run.total THEN
                RAISE EXCEPTION 'Workflow % is to have % tasks, and others were sent. Nothing was started. Send every task before the last page.', v_id, v_run.total
                    USING ERRCODE = 'TN007';
            END IF;
            UPDATE tenure.workflow AS w SET phase = 'forward', updated_at = v_now WHERE w.id = v_id;
            INSERT INTO tenure.workflow_event (kind, workflow_id) VALUES ('release', v_id);
            PERFORM tenure.fold_workflows(500, v_now);
        END IF;
    END IF;
    RETURN json_build_object('id', v_id, 'state', (SELECT w.state FROM tenure.workflow AS w WHERE w.id = v_id), 'duplicate', false);
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
    WHERE w.id IN (
        SELECT (s.value -> 'x' ->> 'workflow_id')::uuid
        FROM json_array_elements(p_request -> 'jobs' -> 'groups') AS g
        CROSS JOIN LATERAL json_array_elements(g.value -> 'jobs') AS s
    )
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

-- advance_workflows: fold up to {"limit"} events → {"events", "more"}.
CREATE OR REPLACE FUNCTION tenure.advance_workflows(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_folded integer := tenure.fold_workflows(coalesce((p_request ->> 'limit')::integer, 500), tenure.now());
BEGIN
    RETURN json_build_object('events', v_folded, 'more', v_folded > 0 AND EXISTS (SELECT 1 FROM tenure.workflow_event));
END
$$;

-- edge_needs, edge_broken: what an edge adds to `needs` and `broken` of the task behind it, by how the task before it ended.
CREATE OR REPLACE FUNCTION tenure.edge_needs(p_kind text, p_outcome text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN p_outcome IS NULL THEN 1 WHEN p_outcome = 'succeeded' OR p_kind = 'ended' THEN 0 ELSE 1 END $$;

CREATE OR REPLACE FUNCTION tenure.edge_broken(p_kind text, p_outcome text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN p_outcome IS NULL OR p_outcome = 'succeeded' OR p_kind = 'ended' THEN 0 ELSE 1 END $$;

-- fold_workflows: one bounded transaction's worth: events in; counts, releases, skips and judgements out. Answers how many events.
--
-- Up to 1,000 edges and jobs are touched; what is beyond that is put back as events. Two folds at once take different events; those of
-- one workflow follow each other, by the lock on its row. An event says no more than «look at this job», so the order does not matter.
CREATE OR REPLACE FUNCTION tenure.fold_workflows(p_limit integer, p_now timestamptz) RETURNS integer
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_events tenure.workflow_event[];
    v_event tenure.workflow_event;
    v_budget integer := 1000;
    v_changes tenure.task_change[];
    v_work tenure.task_change[] := '{}';
    v_looks uuid[];
    v_touched uuid[];
    v_release uuid[] := '{}';
    v_id uuid;
    v_step record;
    v_asked record;
BEGIN
    WITH taken AS (
        DELETE FROM tenure.workflow_event AS e
        WHERE e.seq = ANY (ARRAY(
            SELECT n.seq FROM tenure.workflow_event AS n ORDER BY n.seq LIMIT p_limit FOR UPDATE SKIP LOCKED))
        RETURNING e.*
    )
    SELECT array_agg(t ORDER BY t.seq) INTO v_events FROM taken AS t;
    IF v_events IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM 1 FROM tenure.workflow AS w WHERE w.id IN (SELECT e.workflow_id FROM unnest(v_events) AS e) ORDER BY w.id FOR UPDATE;
    v_touched := ARRAY(SELECT DISTINCT e.workflow_id FROM unnest(v_events) AS e ORDER BY 1);
    v_looks := ARRAY(SELECT DISTINCT e.job_id FROM unnest(v_events) AS e WHERE e.kind = 'look' ORDER BY 1);
    IF cardinality(v_looks) > 0 THEN
        v_work := tenure.count_tasks(tenure.look_at_tasks(v_looks), p_now);
        -- Before anything is released by these ends.
        FOREACH v_id IN ARRAY v_touched LOOP
            PERFORM tenure.judge_workflow(v_id, p_now);
        END LOOP;
    END IF;
    FOREACH v_event IN ARRAY v_events LOOP
        CONTINUE WHEN v_event.kind = 'look';
        IF v_budget <= 0 THEN
            INSERT INTO tenure.workflow_event (kind, workflow_id, job_id, was, became, after)
            VALUES (v_event.kind, v_event.workflow_id, v_event.job_id, v_event.was, v_event.became, v_event.after);
        ELSIF v_event.kind = 'spread' THEN
            v_work := v_work || ROW(v_event.job_id, v_event.workflow_id, v_event.was, v_event.became, NULL, v_event.after::uuid)::tenure.task_change;
        ELSIF v_event.kind = 'release' THEN
            v_release := v_release || v_event.workflow_id;
        ELSIF v_event.kind = 'cancel' THEN
            v_work := v_work || tenure.cancel_page(v_event, v_budget, p_now);
            v_budget := 0;  -- one such page a transaction: job rows are locked in the order of their ids
        ELSIF v_event.kind = 'retry' THEN
            v_work := v_work || tenure.retry_page(v_event, p_now);
            v_budget := 0;
        ELSIF v_event.kind = 'expand' THEN
            SELECT * INTO v_step FROM tenure.expand_task(v_event, v_budget, p_now);
            v_work := v_work || v_step.changes;
            v_budget := v_budget - v_step.made;
        END IF;
    END LOOP;
    WHILE cardinality(v_work) > 0 LOOP
        IF v_budget <= 0 THEN
            INSERT INTO tenure.workflow_event (kind, workflow_id, job_id, was, became, after)
            SELECT 'spread', w.workflow_id, w.job_id, w.was, w.became, w.after::text
            FROM unnest(v_work) AS w
            WHERE EXISTS (SELECT 1 FROM tenure.edge AS e WHERE e.src = w.job_id AND e.dst > w.after);
            EXIT;
        END IF;
        WITH walked AS MATERIALIZED (
            SELECT w.nth, w.was, w.became, e.dst, e.kind
            FROM unnest(v_work) WITH ORDINALITY AS w(job_id, workflow_id, was, became, parent, after, nth)
            CROSS JOIN LATERAL (
                SELECT o.dst, o.kind FROM tenure.edge AS o WHERE o.src = w.job_id AND o.dst > w.after ORDER BY o.dst LIMIT v_budget
            ) AS e
            LIMIT v_budget
        ), delta AS MATERIALIZED (
            SELECT w.dst,
                sum(tenure.edge_needs(w.kind, w.became) - tenure.edge_needs(w.kind, w.was))::integer AS needs,
                sum(tenure.edge_broken(w.kind, w.became) - tenure.edge_broken(w.kind, w.was))::integer AS broken
            FROM walked AS w
            GROUP BY w.dst
        ), met AS (
            UPDATE tenure.task AS t
            SET needs = t.needs + d.needs,
                broken = t.broken + d.broken
            FROM delta AS d
            WHERE t.job_id BETWEEN d.dst AND d.dst AND (d.needs <> 0 OR d.broken <> 0)
            RETURNING t.job_id, t.workflow_id, t.needs, t.broken, t.is_released, t.outcome, t.parent
        )
        SELECT
            (SELECT count(*)::integer FROM walked) AS edges,
            (SELECT max(w.nth)::integer FROM walked AS w) AS nth,
            (SELECT w.dst FROM walked AS w ORDER BY w.nth DESC, w.dst DESC LIMIT 1) AS last,
            array_agg(m.job_id) FILTER (WHERE m.needs <= 0 AND m.broken <= 0 AND NOT m.is_released AND m.outcome IS NULL
                OR m.needs <= 0 AND m.broken <= 0 AND m.outcome = 'skipped') AS ready,
            array_agg(ROW(m.job_id, m.workflow_id, NULL, 'skipped', m.parent, NULL)::tenure.task_change)
                FILTER (WHERE m.broken > 0 AND NOT m.is_released AND m.outcome IS NULL) AS skipped,
            array_agg(ROW(m.job_id, m.workflow_id, 'skipped', NULL, m.parent, NULL)::tenure.task_change)
                FILTER (WHERE m.broken <= 0 AND m.outcome = 'skipped') AS mended
        INTO v_step
        FROM met AS m;
        v_work := CASE WHEN v_step.edges >= v_budget THEN
            ROW((v_work[v_step.nth]).job_id, (v_work[v_step.nth]).workflow_id, (v_work[v_step.nth]).was, (v_work[v_step.nth]).became, NULL,
                v_step.last)::tenure.task_change || v_work[v_step.nth + 1 :]
            ELSE '{}' END;
        v_budget := v_budget - v_step.edges;
        IF v_step.mended IS NOT NULL THEN
            PERFORM tenure.block_again(ARRAY(SELECT m.job_id FROM unnest(v_step.mended) AS m), p_now);
            v_work := v_work || tenure.count_tasks(v_step.mended, p_now);
        END IF;
        IF v_step.skipped IS NOT NULL THEN
            v_looks := tenure.cancel_blocked(ARRAY(SELECT s.job_id FROM unnest(v_step.skipped) AS s), 'upstream',
                'A task that it needs did not succeed.', p_now);
            v_changes := ARRAY(SELECT s FROM unnest(v_step.skipped) AS s WHERE s.job_id = ANY (v_looks));
            v_work := v_work || tenure.count_tasks(v_changes, p_now);
        END IF;
        IF v_step.ready IS NOT NULL THEN
            PERFORM tenure.release_tasks(v_step.ready, p_now);
        END IF;
    END LOOP;
    FOREACH v_id IN ARRAY v_release LOOP
        v_budget := v_budget - tenure.release_ready(v_id, v_budget, p_now);
    END LOOP;
    FOREACH v_id IN ARRAY v_touched LOOP
        PERFORM tenure.judge_workflow(v_id, p_now);
    END LOOP;
    FOR v_asked IN
        SELECT e.id, j.state, j.result, j.queue
        FROM unnest(v_events) AS n
        JOIN tenure.escalation AS e ON e.job_id = n.job_id AND e.state = 'open'
        JOIN tenure.job AS j ON j.id = e.job_id
        WHERE n.kind = 'look' AND j.finished_at IS NOT NULL
        ORDER BY e.id
    LOOP
        PERFORM tenure.hear_answer(v_asked.id, v_asked.state, v_asked.result, v_asked.queue, p_now);
    END LOOP;
    RETURN cardinality(v_events);
END
$$;

-- look_at_tasks: tasks among these jobs whose end is counted otherwise than their job stands.
CREATE OR REPLACE FUNCTION tenure.look_at_tasks(p_jobs uuid[]) RETURNS tenure.task_change[]
LANGUAGE sql VOLATILE
AS $$
    SELECT coalesce(array_agg(ROW(s.job_id, s.workflow_id, s.outcome, s.became, s.parent, NULL)::tenure.task_change ORDER BY s.job_id), '{}')
    FROM (
        SELECT t.job_id, t.workflow_id, t.outcome, t.parent,
            CASE
                WHEN j.state = 'succeeded' THEN 'succeeded'
                WHEN j.state IN ('dead', 'failed') THEN CASE WHEN t.is_optional THEN 'tolerated' ELSE 'failed' END
                WHEN j.state = 'cancelled' THEN CASE WHEN j.failure_class = 'upstream' THEN 'skipped' ELSE 'cancelled' END
            END AS became
        FROM unnest(p_jobs) AS g(id)
        JOIN tenure.task AS t ON t.job_id = g.id
        JOIN tenure.job AS j ON j.id = g.id
    ) AS s
    WHERE s.outcome IS DISTINCT FROM s.became
$$;

-- count_tasks: count tasks otherwise than before, in their workflow and in the fan-out of which they are items. Answers everything
-- whose edges are to be walked: the changes, and fan-outs that ended or opened again by them.
CREATE OR REPLACE FUNCTION tenure.count_tasks(p_changes tenure.task_change[], p_now timestamptz) RETURNS tenure.task_change[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_walk tenure.task_change[];
    v_fan_outs uuid[];
BEGIN
    IF coalesce(cardinality(p_changes), 0) = 0 THEN
        RETURN '{}';
    END IF;
    UPDATE tenure.task AS t SET outcome = c.became FROM unnest(p_changes) AS c WHERE t.job_id BETWEEN c.job_id AND c.job_id;
    -- An ended workflow one of whose tasks was revived has something to do again, unless a retry or a cancel is at it.
    UPDATE tenure.workflow AS w
    SET succeeded = w.succeeded + d.succeeded,
        failed = w.failed + d.failed,
        tolerated = w.tolerated + d.tolerated,
        skipped = w.skipped + d.skipped,
        cancelled = w.cancelled + d.cancelled,
        state = CASE WHEN d.ended < 0 AND w.state IN ('completed', 'failed') AND w.phase <> 'retrying' THEN 'running' ELSE w.state END,
        phase = CASE WHEN d.ended < 0 AND w.state IN ('completed', 'failed') AND w.phase <> 'retrying' THEN 'forward' ELSE w.phase END,
        error = CASE WHEN d.ended < 0 AND w.state IN ('completed', 'failed') AND w.phase <> 'retrying' THEN NULL ELSE w.error END,
        finished_at = CASE WHEN d.ended < 0 AND w.state IN ('completed', 'failed') THEN NULL ELSE w.finished_at END,
        updated_at = p_now
    FROM (
        SELECT s.workflow_id,
            coalesce(sum(s.n) FILTER (WHERE s.outcome = 'succeeded'), 0)::integer AS succeeded,
            coalesce(sum(s.n) FILTER (WHERE s.outcome = 'failed'), 0)::integer AS failed,
            coalesce(sum(s.n) FILTER (WHERE s.outcome = 'tolerated'), 0)::integer AS tolerated,
            coalesce(sum(s.n) FILTER (WHERE s.outcome = 'skipped'), 0)::integer AS skipped,
            coalesce(sum(s.n) FILTER (WHERE s.outcome = 'cancelled'), 0)::integer AS cancelled,
            coalesce(sum(s.n), 0)::integer AS ended
        FROM (
            SELECT c.workflow_id, c.was AS outcome, -1 AS n FROM unnest(p_changes) AS c WHERE c.was IS NOT NULL
            UNION ALL
            SELECT c.workflow_id, c.became, 1 FROM unnest(p_changes) AS c WHERE c.became IS NOT NULL
        ) AS s
        GROUP BY s.workflow_id
    ) AS d
    WHERE w.id = d.workflow_id;
    v_walk := ARRAY(
        SELECT ROW(c.job_id, c.workflow_id, c.was, c.became, c.parent, '00000000-0000-0000-0000-000000000000')::tenure.task_change
        FROM unnest(p_changes) AS c);
    WITH items AS (
        SELECT c.parent,
            sum((c.became IS NOT NULL)::integer - (c.was IS NOT NULL)::integer)::integer AS ended,
            sum((c.became IS NOT NULL AND c.became <> 'succeeded')::integer - (c.was IS NOT NULL AND c.was <> 'succeeded')::integer)::integer AS failed
        FROM unnest(p_changes) AS c
        WHERE c.parent IS NOT NULL
        GROUP BY c.parent
    ), changed AS (
        UPDATE tenure.task AS t
        SET items_ended = t.items_ended + i.ended,
            items_failed = t.items_failed + i.failed
        FROM items AS i
        WHERE t.job_id = i.parent
        RETURNING t.job_id
    )
    SELECT array_agg(c.job_id ORDER BY c.job_id) INTO v_fan_outs FROM changed AS c;
    IF v_fan_outs IS NOT NULL THEN
        v_walk := v_walk || tenure.end_fan_outs(v_fan_outs, p_now);
    END IF;
    RETURN v_walk;
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
BEGIN
    UPDATE tenure.job AS j
    SET state = CASE WHEN p_error IS NULL THEN 'succeeded' ELSE 'failed' END,
        waiting_for = NULL,
        result = p_result,
        failure_class = CASE WHEN p_error IS NOT NULL THEN 'items' END,
        last_error = p_error,
        finished_at = p_now,
        updated_at = p_now
    WHERE j.id = p_job AND j.state = 'waiting';
    IF NOT FOUND THEN
        RETURN '{}';
    END IF;
    PERFORM tenure.tell(CASE WHEN p_error IS NULL THEN 'completed' ELSE 'failed' END, ARRAY[p_job], p_now);
    RETURN tenure.count_tasks(tenure.look_at_tasks(ARRAY[p_job]), p_now);
END
$$;

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
        PERFORM tenure.put_jobs(json_build_array(json_build_object('queue', v_job.queue, 'kind', v_job.kind, 'jobs', v_jobs)), false,
            p_login => v_job.enqueued_by);
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

-- release_tasks: tasks that need nothing more, if their workflow goes forward: jobs are queued, fan-outs expanded.
CREATE OR REPLACE FUNCTION tenure.release_tasks(p_jobs uuid[], p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_jobs uuid[];
    v_queues text[];
BEGIN
    WITH released AS (
        UPDATE tenure.task AS t
        SET is_released = true
        FROM tenure.workflow AS w
        WHERE t.job_id = ANY (p_jobs) AND w.id = t.workflow_id AND w.phase = 'forward' AND t.outcome IS NULL AND NOT t.is_released
        RETURNING t.job_id, t.workflow_id, t.fan_out
    ), expanded AS (
        INSERT INTO tenure.workflow_event (kind, workflow_id, job_id, after)
        SELECT 'expand', r.workflow_id, r.job_id, '0' FROM released AS r WHERE r.fan_out IS NOT NULL
    )
    SELECT array_agg(r.job_id ORDER BY r.job_id) INTO v_jobs FROM released AS r WHERE r.fan_out IS NULL;
    IF v_jobs IS NULL THEN
        RETURN;
    END IF;
    PERFORM 1 FROM tenure.job AS j WHERE j.id = ANY (v_jobs) AND j.state = 'waiting' ORDER BY j.id FOR UPDATE;
    WITH woken AS (
        UPDATE tenure.job AS j
        SET state = 'queued',
            run_at = p_now,
            is_due = true,
            waiting_for = NULL,
            updated_at = p_now
        WHERE j.id = ANY (v_jobs) AND j.state = 'waiting'
        RETURNING j.id, j.queue
    )
    SELECT array_agg(w.id ORDER BY w.id), array_agg(DISTINCT w.queue) INTO v_jobs, v_queues FROM woken AS w;
    IF v_jobs IS NOT NULL THEN
        PERFORM tenure.tell('woken', v_jobs, p_now);
        PERFORM tenure.notify(v_queues);
    END IF;
END
$$;

-- release_ready: a page of what was held back: at the start, and when a workflow goes on. Answers how many.
CREATE OR REPLACE FUNCTION tenure.release_ready(p_workflow uuid, p_limit integer, p_now timestamptz) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    v_jobs uuid[];
BEGIN
    IF (SELECT w.phase FROM tenure.workflow AS w WHERE w.id = p_workflow) <> 'forward' THEN
        RETURN 0;
    END IF;
    -- An edge that is still to be walked may tell that a task is not ready after all.
    IF p_limit <= 0 OR EXISTS (
        SELECT 1 FROM tenure.workflow_event AS e WHERE e.workflow_id = p_workflow AND e.kind = 'spread' AND e.kind <> 'look'
    ) THEN
        INSERT INTO tenure.workflow_event (kind, workflow_id) VALUES ('release', p_workflow);
        RETURN 0;
    END IF;
    v_jobs := ARRAY(
        SELECT t.job_id
        FROM tenure.task AS t
        WHERE t.workflow_id = p_workflow AND t.needs <= 0 AND t.broken <= 0 AND NOT t.is_released AND t.outcome IS NULL
        ORDER BY t.job_id
        LIMIT p_limit
    );
    PERFORM tenure.release_tasks(v_jobs, p_now);
    IF cardinality(v_jobs) >= p_limit THEN
        INSERT INTO tenure.workflow_event (kind, workflow_id) VALUES ('release', p_workflow);
    END IF;
    RETURN cardinality(v_jobs);
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

-- cancel_page: `all` of what is open in a workflow that failed or was cancelled, `blocked` in one that drains.
CREATE OR REPLACE FUNCTION tenure.cancel_page(p_event tenure.workflow_event, p_limit integer, p_now timestamptz) RETURNS tenure.task_change[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_phase text := CASE p_event.was WHEN 'all' THEN 'stopped' ELSE 'draining' END;
    v_jobs uuid[];
    v_owner text;
BEGIN
    IF (SELECT w.phase FROM tenure.workflow AS w WHERE w.id = p_event.workflow_id) <> v_phase THEN
        RETURN '{}';  -- it was set going again meanwhile
    END IF;
    v_jobs := ARRAY(
        SELECT t.job_id
        FROM tenure.task AS t
        WHERE t.workflow_id = p_event.workflow_id AND t.outcome IS NULL AND t.job_id > p_event.after::uuid
            AND (p_event.was = 'all' OR NOT t.is_released)
        ORDER BY t.job_id
        LIMIT p_limit
    );
    PERFORM tenure.cancel_blocked(v_jobs, 'workflow', 'Cancelled with its workflow.', p_now);
    FOR v_owner IN
        UPDATE tenure.job AS j
        SET cancel_requested_at = coalesce(j.cancel_requested_at, p_now),
            updated_at = p_now
        WHERE j.id = ANY (v_jobs) AND j.state IN ('leased', 'running')
        RETURNING j.lease_owner
    LOOP
        PERFORM pg_notify('tenure', 'cancel:' || v_owner);
    END LOOP;
    IF cardinality(v_jobs) >= p_limit THEN
        INSERT INTO tenure.workflow_event (kind, workflow_id, was, after)
        VALUES ('cancel', p_event.workflow_id, p_event.was, v_jobs[cardinality(v_jobs)]::text);
    END IF;
    RETURN tenure.count_tasks(tenure.look_at_tasks(v_jobs), p_now);
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
        SELECT t.*, j.failure_class
        FROM tenure.task AS t
        JOIN tenure.job AS j ON j.id = t.job_id
        WHERE t.workflow_id = p_event.workflow_id AND t.outcome = p_event.was AND t.job_id > p_event.after::uuid
        ORDER BY t.job_id
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

-- judge_workflow: whether its counts breach a workflow's policy, or end it. Its row is locked.
CREATE OR REPLACE FUNCTION tenure.judge_workflow(p_id uuid, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_run tenure.workflow;
    v_is_breached boolean;
BEGIN
    SELECT * INTO v_run FROM tenure.workflow AS w WHERE w.id = p_id;
    IF NOT FOUND OR v_run.state NOT IN ('running', 'escalated') OR v_run.phase IN ('loading', 'retrying') THEN
        RETURN;
    END IF;
    v_is_breached := v_run.is_judged AND tenure.is_breached(v_run);
    IF v_run.state = 'escalated' THEN
        IF NOT v_is_breached AND (
            SELECT e.reason FROM tenure.escalation AS e WHERE e.workflow_id = p_id AND e.state = 'open' ORDER BY e.level DESC LIMIT 1
        ) = 'threshold' THEN
            -- Failed tasks were revived: the question has answered itself.
            PERFORM tenure.close_escalations(p_id, p_now);
            UPDATE tenure.workflow AS w SET error = NULL WHERE w.id = p_id;
            PERFORM tenure.go_forward(p_id, p_now);
        END IF;
        RETURN;
    END IF;
    IF v_is_breached AND v_run.phase = 'forward' THEN
        PERFORM tenure.breach_workflow(v_run, 'threshold', format('%s of %s tasks failed',
            to_char(v_run.failed, 'FM999,999,999,990'), to_char(v_run.total, 'FM999,999,999,990')), p_now);
        SELECT * INTO v_run FROM tenure.workflow AS w WHERE w.id = p_id;
        IF v_run.state <> 'running' THEN
            RETURN;
        END IF;
    END IF;
    IF v_run.succeeded + v_run.failed + v_run.tolerated + v_run.skipped + v_run.cancelled >= v_run.total THEN
        UPDATE tenure.workflow AS w
        SET state = CASE w.phase WHEN 'draining' THEN 'failed' ELSE 'completed' END,
            finished_at = p_now,
            due_at = NULL,
            updated_at = p_now
        WHERE w.id = p_id;
        IF v_run.phase = 'draining' THEN
            PERFORM tenure.undo_workflow(v_run);
        END IF;
    END IF;
END
$$;

-- undo_workflow: let what succeeded be undone, where tasks say how. The job is read by flow/compensation.py.
CREATE OR REPLACE FUNCTION tenure.undo_workflow(p_run tenure.workflow) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_run.policy -> 'undo' IS NOT NULL THEN
        PERFORM tenure.put_jobs(json_build_array(json_build_object(
            'queue', 'compensation', 'kind', 'tenure.undo_workflow', 'jobs', json_build_array(json_build_object(
                'i', tenure.new_id(tenure.now()), 'x', json_build_object('actor', 'orchestrator'),
                'p', json_build_object('workflow_id', p_run.id))))), false);
    END IF;
END
$$;

-- is_breached: whether so much failed that the policy counts it as too much. model/workflow.py has the same rule.
CREATE OR REPLACE FUNCTION tenure.is_breached(p_run tenure.workflow) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT CASE
        WHEN f.fail ->> 'count' IS NOT NULL THEN (p_run).failed >= (f.fail ->> 'count')::integer
        WHEN f.fail ->> 'ppm' IS NULL OR (p_run).failed = 0 THEN false
        ELSE (p_run).succeeded + (p_run).failed + (p_run).tolerated + (p_run).skipped + (p_run).cancelled
            >= coalesce((f.fail ->> 'at_least')::integer, 0)
            AND (p_run).failed::bigint * 1000000 >= (f.fail ->> 'ppm')::bigint * (p_run).total
    END
    FROM (SELECT (p_run).policy -> 'fail' AS fail) AS f
$$;

-- breach_workflow: too much failed, or it took too long: do what the policy says.
CREATE OR REPLACE FUNCTION tenure.breach_workflow(p_run tenure.workflow, p_reason text, p_detail text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_act text := coalesce(p_run.policy ->> 'on_breach', 'fail');
BEGIN
    IF v_act = 'continue' THEN
        UPDATE tenure.workflow AS w SET error = p_detail, is_judged = false, updated_at = p_now WHERE w.id = p_run.id;
    ELSIF v_act = 'drain' THEN
        UPDATE tenure.workflow AS w SET phase = 'draining', error = p_detail, is_judged = false, updated_at = p_now WHERE w.id = p_run.id;
        INSERT INTO tenure.workflow_event (kind, workflow_id, was, after)
        VALUES ('cancel', p_run.id, 'blocked', '00000000-0000-0000-0000-000000000000');
    ELSIF v_act = 'escalate' THEN
        UPDATE tenure.workflow AS w SET state = 'escalated', phase = 'held', error = p_detail, updated_at = p_now WHERE w.id = p_run.id;
        PERFORM tenure.escalate_workflow(p_run, p_reason, p_detail, 1, p_now);
    ELSE
        PERFORM tenure.stop_workflow(p_run.id, 'failed', p_detail, p_now);
    END IF;
END
$$;

-- stop_workflow: end a workflow now; what is open is cancelled page by page.
CREATE OR REPLACE FUNCTION tenure.stop_workflow(p_id uuid, p_state text, p_error text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM tenure.close_escalations(p_id, p_now);
    UPDATE tenure.workflow AS w
    SET state = p_state, phase = 'stopped', error = p_error, finished_at = p_now, due_at = NULL, updated_at = p_now
    WHERE w.id = p_id;
    INSERT INTO tenure.workflow_event (kind, workflow_id, was, after) VALUES ('cancel', p_id, 'all', '00000000-0000-0000-0000-000000000000');
    PERFORM tenure.undo_workflow(w) FROM tenure.workflow AS w WHERE w.id = p_id;
END
$$;

-- go_forward: what was held back is released, and the next breach is another round.
CREATE OR REPLACE FUNCTION tenure.go_forward(p_id uuid, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE tenure.workflow AS w SET state = 'running', phase = 'forward', round = w.round + 1, updated_at = p_now WHERE w.id = p_id;
    INSERT INTO tenure.workflow_event (kind, workflow_id) VALUES ('release', p_id);
END
$$;

-- begin_retry: what failed runs again, page by page; nothing is judged meanwhile.
CREATE OR REPLACE FUNCTION tenure.begin_retry(p_id uuid, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE tenure.workflow AS w
    SET state = 'running', phase = 'retrying', error = NULL, is_judged = true, round = w.round + 1, finished_at = NULL, updated_at = p_now
    WHERE w.id = p_id;
    INSERT INTO tenure.workflow_event (kind, workflow_id, was, after) VALUES ('retry', p_id, 'failed', '00000000-0000-0000-0000-000000000000');
END
$$;

-- escalate_workflow: ask a level of the ladder. One row per round and level, however often it is tried.
CREATE OR REPLACE FUNCTION tenure.escalate_workflow(
    p_run tenure.workflow, p_reason text, p_detail text, p_level integer, p_now timestamptz
) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_target json := p_run.policy -> 'ladder' -> (p_level - 1);
    v_id uuid := tenure.new_id(p_now);
    v_job uuid := CASE WHEN v_target ->> 'person' IS NULL THEN tenure.new_id(p_now) END;
BEGIN
    INSERT INTO tenure.escalation (id, workflow_id, round, level, reason, detail, target, person, job_id, due_at, created_at)
    VALUES (
        v_id, p_run.id, p_run.round, p_level, p_reason, p_detail, v_target, v_target ->> 'person', v_job,
        p_now + (v_target ->> 'after')::double precision * interval '1 second', p_now
    )
    ON CONFLICT DO NOTHING;
    IF NOT FOUND OR v_job IS NULL THEN
        RETURN;
    END IF;
    PERFORM tenure.put_jobs(json_build_array(json_build_object(
        'queue', v_target ->> 'queue', 'kind', v_target ->> 'kind', 'jobs', json_build_array(json_build_object(
            'i', v_job, 'x', json_build_object('workflow_id', p_run.id, 'actor', 'orchestrator'), 'p', json_build_object(
                'escalation_id', v_id, 'workflow_id', p_run.id, 'workflow', p_run.kind, 'reason', p_reason, 'detail', p_detail,
                'level', p_level, 'counts', json_build_object('total', p_run.total, 'succeeded', p_run.succeeded, 'failed', p_run.failed,
                    'tolerated', p_run.tolerated, 'skipped', p_run.skipped, 'cancelled', p_run.cancelled),
                'answers', json_build_array('go_on', 'retry_failed', 'raise_threshold', 'fail', 'cancel')))))), false);
END
$$;

-- pass_on: a level did not answer: ask the next, or fail where there is none. The workflow's row is locked.
CREATE OR REPLACE FUNCTION tenure.pass_on(p_id uuid, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_asked tenure.escalation;
    v_run tenure.workflow;
BEGIN
    UPDATE tenure.escalation AS e SET state = 'passed', ended_at = p_now WHERE e.id = p_id AND e.state = 'open' RETURNING * INTO v_asked;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO v_run FROM tenure.workflow AS w WHERE w.id = v_asked.workflow_id;
    IF v_run.state <> 'escalated' THEN
        RETURN;
    END IF;
    IF v_asked.level < json_array_length(v_run.policy -> 'ladder') THEN
        PERFORM tenure.escalate_workflow(v_run, v_asked.reason, v_asked.detail, v_asked.level + 1, p_now);
    ELSE
        PERFORM tenure.stop_workflow(v_run.id, 'failed', v_asked.detail || ', and no one answered the escalation', p_now);
    END IF;
END
$$;

-- hear_answer: the job that asked an agent or a queue has ended: its result is the answer. Without one the next level is asked.
CREATE OR REPLACE FUNCTION tenure.hear_answer(p_id uuid, p_state text, p_result json, p_queue text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_said text := CASE WHEN p_state = 'succeeded' AND json_typeof(p_result) = 'object' THEN p_result ->> 'answer' END;
BEGIN
    IF v_said IN ('go_on', 'retry_failed', 'raise_threshold', 'fail', 'cancel')
        AND (v_said <> 'raise_threshold' OR tenure.is_threshold(p_result -> 'threshold'))
    THEN
        PERFORM tenure.apply_answer(p_id, v_said, p_queue, CASE json_typeof(p_result -> 'note') WHEN 'string' THEN p_result ->> 'note' END,
            p_result -> 'threshold', p_now);
    ELSE
        PERFORM tenure.pass_on(p_id, p_now);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION tenure.is_threshold(p_given json) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce(json_typeof(p_given) = 'object' AND num_nonnulls(p_given ->> 'count', p_given ->> 'ppm') = 1
        AND coalesce(p_given ->> 'count', p_given ->> 'ppm') ~ '^[1-9][0-9]{0,8}$', false)
$$;

-- close_escalations: the questions about a workflow are no longer needed.
CREATE OR REPLACE FUNCTION tenure.close_escalations(p_workflow uuid, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_jobs uuid[];
BEGIN
    WITH closed AS (
        UPDATE tenure.escalation AS e SET state = 'closed', ended_at = p_now
        WHERE e.workflow_id = p_workflow AND e.state = 'open'
        RETURNING e.job_id
    )
    SELECT array_agg(c.job_id) INTO v_jobs FROM closed AS c WHERE c.job_id IS NOT NULL;
    IF v_jobs IS NOT NULL THEN
        PERFORM tenure.cancel_blocked(v_jobs, 'workflow', 'The question is no longer open.', p_now);
    END IF;
END
$$;

-- apply_answer: what was answered, by whom. The workflow's row is locked, the escalation open.
CREATE OR REPLACE FUNCTION tenure.apply_answer(
    p_id uuid, p_answer text, p_actor text, p_note text, p_threshold json, p_now timestamptz
) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_asked tenure.escalation;
BEGIN
    UPDATE tenure.escalation AS e
    SET state = 'answered', ended_at = p_now, answer = p_answer, answered_by = p_actor, note = p_note
    WHERE e.id = p_id AND e.state = 'open'
    RETURNING * INTO v_asked;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM tenure.write_audit(p_now, p_actor, 'answer_escalation', p_id::text, p_note,
        json_build_object('workflow_id', v_asked.workflow_id, 'answer', p_answer, 'threshold', p_threshold));
    IF p_answer = 'go_on' THEN
        UPDATE tenure.workflow AS w SET is_judged = false WHERE w.id = v_asked.workflow_id;
        PERFORM tenure.go_forward(v_asked.workflow_id, p_now);
    ELSIF p_answer = 'raise_threshold' THEN
        UPDATE tenure.workflow AS w SET policy = (w.policy::jsonb || jsonb_build_object('fail', p_threshold))::json
        WHERE w.id = v_asked.workflow_id;
        PERFORM tenure.go_forward(v_asked.workflow_id, p_now);
    ELSIF p_answer = 'retry_failed' THEN
        PERFORM tenure.begin_retry(v_asked.workflow_id, p_now);
    ELSIF p_answer = 'fail' THEN
        PERFORM tenure.stop_workflow(v_asked.workflow_id, 'failed', v_asked.detail || '; ' || p_actor || ' answered: fail', p_now);
    ELSE
        PERFORM tenure.stop_workflow(v_asked.workflow_id, 'cancelled', p_actor || ' answered: cancel', p_now);
    END IF;
END
$$;

-- answer_escalation: {"id", "answer", "actor", "note", "threshold"} → its row.
CREATE OR REPLACE FUNCTION tenure.answer_escalation(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_answer text := p_request ->> 'answer';
    v_asked tenure.escalation;
BEGIN
    IF v_answer IS NULL OR v_answer NOT IN ('go_on', 'retry_failed', 'raise_threshold', 'fail', 'cancel') THEN
        RAISE EXCEPTION 'answer is %; it may be go_on, retry_failed, raise_threshold, fail, cancel. Nothing was changed.', quote_nullable(v_answer)
            USING ERRCODE = 'TN007';
    END IF;
    IF v_answer = 'raise_threshold' AND NOT tenure.is_threshold(p_request -> 'threshold') THEN
        RAISE EXCEPTION 'raise_threshold needs the new `threshold`: a count or a share. Nothing was changed.' USING ERRCODE = 'TN007';
    END IF;
    PERFORM 1 FROM tenure.workflow AS w
    WHERE w.id = (SELECT e.workflow_id FROM tenure.escalation AS e WHERE e.id = tenure.as_uuid(p_request ->> 'id'))
    FOR UPDATE;
    SELECT * INTO v_asked FROM tenure.escalation AS e WHERE e.id = tenure.as_uuid(p_request ->> 'id');
    IF NOT FOUND THEN
        RAISE EXCEPTION 'There is no escalation %. `tenure workflows show` lists those of a workflow.', p_request ->> 'id' USING ERRCODE = 'TN009';
    END IF;
    IF v_asked.state = 'open' THEN
        PERFORM tenure.apply_answer(v_asked.id, v_answer, p_request ->> 'actor', p_request ->> 'note', p_request -> 'threshold', v_now);
        PERFORM tenure.fold_workflows(500, v_now);
    ELSIF v_asked.state <> 'answered' OR v_asked.answer <> v_answer THEN
        RAISE EXCEPTION 'Escalation % %, so this answer came too late. Nothing was changed.', v_asked.id, CASE v_asked.state
            WHEN 'answered' THEN format('was answered with %L by %s', v_asked.answer, v_asked.answered_by) ELSE 'is ' || v_asked.state END
            USING ERRCODE = 'TN008';
    END IF;
    RETURN (SELECT tenure.show_escalation(e) FROM tenure.escalation AS e WHERE e.id = v_asked.id);
END
$$;

-- are_workflows_due: whether there is something to fold, or a deadline or a level of escalation is over. Takes {}.
CREATE OR REPLACE FUNCTION tenure.are_workflows_due(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT to_json(EXISTS (SELECT 1 FROM tenure.workflow_event)
        OR EXISTS (SELECT 1 FROM tenure.workflow AS w WHERE w.due_at <= tenure.now())
        OR EXISTS (SELECT 1 FROM tenure.escalation AS e WHERE e.state = 'open' AND e.due_at <= tenure.now()))
$$;

-- tend_workflows: deadlines that passed, and levels that were not answered, up to {"limit"} each → how many there were.
CREATE OR REPLACE FUNCTION tenure.tend_workflows(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_limit integer := coalesce((p_request ->> 'limit')::integer, 100);
    v_ids uuid[];
    v_run tenure.workflow;
    v_asked uuid;
    v_done integer := 0;
BEGIN
    v_ids := ARRAY(
        SELECT s.id
        FROM (
            (SELECT w.id FROM tenure.workflow AS w WHERE w.due_at <= v_now ORDER BY w.due_at LIMIT v_limit)
            UNION
            (SELECT e.workflow_id FROM tenure.escalation AS e WHERE e.state = 'open' AND e.due_at <= v_now ORDER BY e.due_at LIMIT v_limit)
        ) AS s
        ORDER BY s.id
    );
    FOR v_run IN SELECT w.* FROM tenure.workflow AS w WHERE w.id = ANY (v_ids) ORDER BY w.id FOR UPDATE LOOP
        IF v_run.due_at <= v_now THEN
            v_done := v_done + 1;
            UPDATE tenure.workflow AS w SET due_at = NULL WHERE w.id = v_run.id;
            IF v_run.state = 'running' THEN
                PERFORM tenure.breach_workflow(v_run, 'deadline', 'the deadline has passed', v_now);
            END IF;
        END IF;
        FOR v_asked IN SELECT e.id FROM tenure.escalation AS e WHERE e.workflow_id = v_run.id AND e.state = 'open' AND e.due_at <= v_now LOOP
            v_done := v_done + 1;
            PERFORM tenure.pass_on(v_asked, v_now);
        END LOOP;
    END LOOP;
    RETURN to_json(v_done);
END
$$;

-- cancel_workflow, retry_workflow: {"id", "actor", "reason"} → its row.
CREATE OR REPLACE FUNCTION tenure.cancel_workflow(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_run tenure.workflow := tenure.lock_workflow(p_request ->> 'id');
BEGIN
    IF v_run.state IN ('completed', 'failed') THEN
        RAISE EXCEPTION 'Workflow % is %, so there is nothing to cancel.', v_run.id, v_run.state USING ERRCODE = 'TN008';
    END IF;
    IF v_run.state <> 'cancelled' THEN
        PERFORM tenure.write_audit(v_now, p_request ->> 'actor', 'cancel_workflow', v_run.id::text, p_request ->> 'reason',
            json_build_object('state', v_run.state));
        PERFORM tenure.stop_workflow(v_run.id, 'cancelled', format('cancelled by %s: %s', p_request ->> 'actor', p_request ->> 'reason'), v_now);
        PERFORM tenure.fold_workflows(500, v_now);
    END IF;
    RETURN (SELECT tenure.show_workflow(w) FROM tenure.workflow AS w WHERE w.id = v_run.id);
END
$$;

CREATE OR REPLACE FUNCTION tenure.retry_workflow(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_run tenure.workflow := tenure.lock_workflow(p_request ->> 'id');
BEGIN
    IF v_run.state = 'cancelled' OR v_run.phase IN ('loading', 'retrying') THEN
        RAISE EXCEPTION 'Workflow % %, so it cannot be retried. Nothing was changed.', v_run.id,
            CASE v_run.state WHEN 'cancelled' THEN 'was cancelled' ELSE 'is ' || v_run.phase END USING ERRCODE = 'TN008';
    END IF;
    IF v_run.state = 'failed' AND v_run.policy -> 'undo' IS NOT NULL THEN
        RAISE EXCEPTION 'Workflow % failed and what had succeeded is undone, so it cannot be retried. Start it anew. Nothing was changed.',
            v_run.id USING ERRCODE = 'TN008';
    END IF;
    IF v_run.state IN ('running', 'completed') AND v_run.failed = 0 AND v_run.tolerated = 0 AND v_run.cancelled = 0 THEN
        RAISE EXCEPTION 'No task of workflow % has failed, so there is nothing to retry. Nothing was changed.', v_run.id USING ERRCODE = 'TN008';
    END IF;
    PERFORM tenure.write_audit(v_now, p_request ->> 'actor', 'retry_workflow', v_run.id::text, p_request ->> 'reason',
        json_build_object('state', v_run.state));
    PERFORM tenure.close_escalations(v_run.id, v_now);
    PERFORM tenure.begin_retry(v_run.id, v_now);
    PERFORM tenure.fold_workflows(500, v_now);
    RETURN (SELECT tenure.show_workflow(w) FROM tenure.workflow AS w WHERE w.id = v_run.id);
END
$$;

CREATE OR REPLACE FUNCTION tenure.lock_workflow(p_id text) RETURNS tenure.workflow
LANGUAGE plpgsql
AS $$
DECLARE
    v_run tenure.workflow;
BEGIN
    SELECT * INTO v_run FROM tenure.workflow AS w WHERE w.id = tenure.as_uuid(p_id) FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'There is no workflow %. `tenure workflows ls` lists them.', p_id USING ERRCODE = 'TN009';
    END IF;
    RETURN v_run;
END
$$;

-- workflow_state: the state to show: a running workflow waits where no task that was released is queued or held.
CREATE OR REPLACE FUNCTION tenure.workflow_state(p_run tenure.workflow) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT CASE WHEN (p_run).state = 'running' AND (p_run).phase <> 'loading' AND NOT EXISTS (
        SELECT 1
        FROM tenure.task AS t
        JOIN tenure.job AS j ON j.id = t.job_id
        WHERE t.workflow_id = (p_run).id AND t.is_released AND t.outcome IS NULL AND j.state <> 'waiting'
    ) AND NOT EXISTS (SELECT 1 FROM tenure.workflow_event AS v WHERE v.workflow_id = (p_run).id AND v.kind <> 'look')
    THEN 'waiting' ELSE (p_run).state END
$$;

CREATE OR REPLACE FUNCTION tenure.show_workflow(p_run tenure.workflow) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_array(
        (p_run).id, (p_run).kind, tenure.workflow_state(p_run), (p_run).phase, (p_run).total, (p_run).succeeded, (p_run).failed,
        (p_run).tolerated, (p_run).skipped, (p_run).cancelled, (p_run).policy, (p_run).profile, tenure.to_us((p_run).created_at),
        tenure.to_us((p_run).updated_at), tenure.to_us((p_run).finished_at), tenure.to_us((p_run).due_at), (p_run).key, (p_run).actor,
        (p_run).tenant, (p_run).error, (p_run).data)
$$;

-- list_workflows: {"id", "states", "names", "after", "limit"} → rows, newest first.
CREATE OR REPLACE FUNCTION tenure.list_workflows(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    WITH asked AS (
        SELECT ARRAY(SELECT json_array_elements_text(coalesce(p_request -> 'states', '[]'))) AS states,
            ARRAY(SELECT json_array_elements_text(coalesce(p_request -> 'names', '[]'))) AS names
    )
    SELECT coalesce(json_agg(tenure.show_workflow(s.run) ORDER BY (s.run).id DESC), '[]')
    FROM (
        SELECT w AS run
        FROM tenure.workflow AS w
        CROSS JOIN asked AS a
        WHERE (p_request ->> 'id' IS NULL OR w.id = tenure.as_uuid(p_request ->> 'id'))
            AND (p_request ->> 'after' IS NULL OR w.id < tenure.as_uuid(p_request ->> 'after'))
            AND (a.names = '{}' OR w.kind = ANY (a.names))
            AND (a.states = '{}' OR (w.state = ANY (a.states) OR w.state = 'running' AND 'waiting' = ANY (a.states))
                AND tenure.workflow_state(w) = ANY (a.states))
            AND tenure.sees_run(w.id, w.started_by)
        ORDER BY w.id DESC
        LIMIT coalesce((p_request ->> 'limit')::integer, 50)
    ) AS s
$$;

-- list_tasks: {"id", "names", "outcomes", "after", "limit"} → rows by rising id.
CREATE OR REPLACE FUNCTION tenure.list_tasks(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(s.line ORDER BY s.job_id), '[]')
    FROM (
        SELECT t.job_id, json_build_array(t.job_id, t.name, j.queue, j.kind, tenure.task_state(t, j.state), t.outcome, greatest(t.needs, 0),
            t.depth, t.is_optional, j.attempt, tenure.to_us(j.claimed_at), tenure.to_us(j.finished_at), j.last_error, j.result) AS line
        FROM tenure.task AS t
        JOIN tenure.job AS j ON j.id = t.job_id
        WHERE t.workflow_id = tenure.as_uuid(p_request ->> 'id')
            AND tenure.sees_run(t.workflow_id, (SELECT w.started_by FROM tenure.workflow AS w WHERE w.id = tenure.as_uuid(p_request ->> 'id')))
            AND (p_request ->> 'after' IS NULL OR t.job_id > tenure.as_uuid(p_request ->> 'after'))
            AND (tenure.text_list(p_request -> 'names') IS NULL OR t.name = ANY (tenure.text_list(p_request -> 'names')))
            AND (tenure.text_list(p_request -> 'outcomes') IS NULL
                OR coalesce(t.outcome, 'open') = ANY (tenure.text_list(p_request -> 'outcomes')))
        ORDER BY t.job_id
        LIMIT coalesce((p_request ->> 'limit')::integer, 50)
    ) AS s
$$;

CREATE OR REPLACE FUNCTION tenure.task_state(p_task tenure.task, p_state text) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_state = 'waiting' AND NOT (p_task).is_released THEN 'blocked'
        WHEN (p_task).outcome = 'skipped' THEN 'skipped'
        ELSE p_state
    END
$$;

-- workflow_edges: {"id", "folded"} → [[src, dst, kind], …], or of the folded graph {"nodes": [[agent, type, depth, state, tasks, first
-- claim, last end], …], "edges": [[agent, type, depth, agent, type, depth, kind], …]}.
CREATE OR REPLACE FUNCTION tenure.workflow_edges(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_id uuid := tenure.as_uuid(p_request ->> 'id');
BEGIN
    IF NOT (p_request ->> 'folded')::boolean THEN
        RETURN (
            SELECT coalesce(json_agg(json_build_array(s.src, s.dst, s.kind) ORDER BY s.src, s.dst), '[]')
            FROM (
                SELECT e.src, e.dst, e.kind
                FROM tenure.task AS t
                JOIN tenure.edge AS e ON e.dst = t.job_id
                WHERE t.workflow_id = v_id
                UNION ALL
                SELECT t.parent, t.job_id, 'ok' FROM tenure.task AS t WHERE t.workflow_id = v_id AND t.parent IS NOT NULL
            ) AS s
        );
    END IF;
    RETURN json_build_object(
        'nodes', (
            SELECT json_agg(json_build_array(n.queue, n.kind, n.depth, n.shown, n.tasks, tenure.to_us(n.first), tenure.to_us(n.last))
                ORDER BY n.depth, n.queue COLLATE "C", n.kind COLLATE "C", n.shown COLLATE "C")
            FROM (
                SELECT j.queue, j.kind::text AS kind, t.depth, tenure.task_state(t, j.state) AS shown, count(*) AS tasks,
                    min(j.claimed_at) AS first, max(j.finished_at) AS last
                FROM tenure.task AS t
                JOIN tenure.job AS j ON j.id = t.job_id
                WHERE t.workflow_id = v_id
                GROUP BY 1, 2, 3, 4
            ) AS n
        ),
        'edges', (
            SELECT coalesce(json_agg(json_build_array(n.a_queue, n.a_kind, n.a_depth, n.b_queue, n.b_kind, n.b_depth, n.kind)
                ORDER BY n.a_depth, n.a_queue COLLATE "C", n.a_kind COLLATE "C", n.b_depth, n.b_queue COLLATE "C", n.b_kind COLLATE "C", n.kind), '[]')
            FROM (
                SELECT DISTINCT a.queue AS a_queue, a.kind::text AS a_kind, s.depth AS a_depth, b.queue AS b_queue, b.kind::text AS b_kind,
                    d.depth AS b_depth, e.kind
                FROM tenure.task AS d
                JOIN tenure.edge AS e ON e.dst = d.job_id
                JOIN tenure.task AS s ON s.job_id = e.src
                JOIN tenure.job AS a ON a.id = e.src
                JOIN tenure.job AS b ON b.id = e.dst
                WHERE d.workflow_id = v_id
            ) AS n
        )
    );
END
$$;

CREATE OR REPLACE FUNCTION tenure.show_escalation(p_asked tenure.escalation) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_array(
        (p_asked).id, (p_asked).workflow_id, w.kind, (p_asked).round, (p_asked).level, (p_asked).reason, (p_asked).detail,
        (p_asked).target, (p_asked).state, tenure.to_us((p_asked).created_at), tenure.to_us((p_asked).due_at),
        tenure.to_us((p_asked).ended_at), (p_asked).person, (p_asked).job_id, (p_asked).answer, (p_asked).answered_by, (p_asked).note)
    FROM tenure.workflow AS w
    WHERE w.id = (p_asked).workflow_id
$$;

-- list_escalations: {"workflow_id", "person", "states", "limit"} → rows, oldest first.
CREATE OR REPLACE FUNCTION tenure.list_escalations(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(tenure.show_escalation(s.asked)
        ORDER BY (s.asked).created_at, (s.asked).workflow_id, (s.asked).round, (s.asked).level), '[]')
    FROM (
        SELECT e AS asked
        FROM tenure.escalation AS e
        WHERE (p_request ->> 'workflow_id' IS NULL OR e.workflow_id = tenure.as_uuid(p_request ->> 'workflow_id'))
            AND (p_request ->> 'person' IS NULL OR e.person = p_request ->> 'person')
            AND (coalesce(json_array_length(p_request -> 'states'), 0) = 0
                OR e.state IN (SELECT json_array_elements_text(p_request -> 'states')))
            AND tenure.sees_run(e.workflow_id, (SELECT w.started_by FROM tenure.workflow AS w WHERE w.id = e.workflow_id))
        ORDER BY e.created_at, e.workflow_id, e.round, e.level
        LIMIT coalesce((p_request ->> 'limit')::integer, 100)
    ) AS s
$$;

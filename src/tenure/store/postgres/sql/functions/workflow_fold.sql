-- Folding: what the ends of tasks mean for their workflows: counts, releases, skips. The rules stand in store/workflows.py; the SQLite
-- engine has them in the same words in workflow_fold.py. The head of flow.sql says why keys are compared by `BETWEEN`, and pages as rows.

-- note_tasks: jobs that name a workflow have ended or were revived. Insert-only: an exchange waits for nothing here.
CREATE OR REPLACE FUNCTION tenure.note_tasks(p_jobs uuid[], p_workflows uuid[]) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO tenure.workflow_event (kind, workflow_id, job_id)
    SELECT 'look', n.workflow_id, n.job_id FROM unnest(p_jobs, p_workflows) AS n(job_id, workflow_id)
$$;

-- lock_runs: an act on several jobs locks the workflows of which they are tasks before the jobs, as a fold does. A fold locks jobs in the
-- order of the graph, so the two would wait for each other in a circle otherwise.
CREATE OR REPLACE FUNCTION tenure.lock_runs(p_jobs uuid[]) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF cardinality(p_jobs) > 1 THEN
        PERFORM 1
        FROM tenure.workflow AS w
        WHERE w.id = ANY (ARRAY(SELECT j.workflow_id FROM tenure.job AS j WHERE j.id = ANY (p_jobs)))
        ORDER BY w.id
        FOR UPDATE;
    END IF;
END
$$;

-- advance_workflows: fold up to {"limit"} events → {"events", "more"}. A workflow that cannot go on fails, and the others go on.
CREATE OR REPLACE FUNCTION tenure.advance_workflows(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_limit integer := coalesce((p_request ->> 'limit')::integer, 500);
    v_folded integer;
BEGIN
    BEGIN
        v_folded := tenure.fold_workflows(v_limit, v_now);
    EXCEPTION WHEN OTHERS THEN
        IF NOT tenure.is_refusal(SQLSTATE) THEN
            RAISE;
        END IF;
        v_folded := tenure.fold_each(v_limit, v_now);
    END;
    RETURN json_build_object('events', v_folded, 'more', v_folded > 0 AND EXISTS (SELECT 1 FROM tenure.workflow_event));
END
$$;

-- fold_each: fold the oldest events workflow by workflow, and fail those that cannot go on. Answers how many events.
CREATE OR REPLACE FUNCTION tenure.fold_each(p_limit integer, p_now timestamptz) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    v_folded integer := 0;
    v_events record;
BEGIN
    FOR v_events IN
        SELECT o.workflow_id, array_agg(o.seq) AS picked
        FROM (SELECT e.workflow_id, e.seq FROM tenure.workflow_event AS e ORDER BY e.seq LIMIT p_limit FOR UPDATE SKIP LOCKED) AS o
        GROUP BY o.workflow_id
        ORDER BY o.workflow_id
    LOOP
        v_folded := v_folded + cardinality(v_events.picked);
        BEGIN
            PERFORM tenure.fold_workflows(p_limit, p_now, NULL, v_events.picked);
        EXCEPTION WHEN OTHERS THEN
            IF NOT tenure.is_refusal(SQLSTATE) THEN
                RAISE;
            END IF;
            PERFORM tenure.give_up_workflow(v_events.workflow_id, SQLERRM, p_now);
        END;
    END LOOP;
    RETURN v_folded;
END
$$;

-- fold_workflows: one bounded transaction's worth: events in; counts, releases, skips and judgements out. Answers how many events.
--
-- Up to 1,000 edges and jobs are touched, ends among them; what is beyond that is put back as events. Two folds at once take different events; those of
-- one workflow follow each other, by the lock on its row. An event says no more than «look at this job», so the order does not matter.
-- p_only: a workflow whose row the caller has locked; then only what is left to do of that one is folded, without ends, so that no other
-- row is waited for. p_picked: events that the caller has locked; then just these are folded.
CREATE OR REPLACE FUNCTION tenure.fold_workflows(p_limit integer, p_now timestamptz, p_only uuid DEFAULT NULL, p_picked bigint[] DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_picked bigint[];
    v_events tenure.workflow_event[];
    v_event tenure.workflow_event;
    v_budget integer := 1000;
    v_changes tenure.task_change[];
    v_work tenure.task_change[] := '{}';
    v_looks uuid[];
    v_cancelled uuid[];
    v_touched uuid[];
    v_release uuid[] := '{}';
    v_id uuid;
    v_step record;
    v_asked record;
BEGIN
    IF p_picked IS NOT NULL THEN
        v_picked := p_picked;
    ELSIF p_only IS NULL THEN
        v_picked := ARRAY(SELECT n.seq FROM tenure.workflow_event AS n ORDER BY n.seq LIMIT p_limit FOR UPDATE SKIP LOCKED);
    ELSE
        v_picked := ARRAY(
            SELECT n.seq FROM tenure.workflow_event AS n WHERE n.workflow_id = p_only AND n.kind <> 'look' LIMIT p_limit FOR UPDATE SKIP LOCKED);
    END IF;
    WITH taken AS (
        DELETE FROM tenure.workflow_event AS e WHERE e.seq = ANY (v_picked) RETURNING e.*
    )
    SELECT array_agg(t ORDER BY t.seq) INTO v_events FROM taken AS t;
    IF v_events IS NULL THEN
        RETURN 0;
    END IF;
    v_touched := ARRAY(SELECT DISTINCT e.workflow_id FROM unnest(v_events) AS e ORDER BY 1);
    PERFORM 1 FROM tenure.workflow AS w WHERE w.id = ANY (v_touched) ORDER BY w.id FOR UPDATE;
    v_looks := ARRAY(SELECT DISTINCT e.job_id FROM unnest(v_events) AS e WHERE e.kind = 'look' ORDER BY 1);
    IF cardinality(v_looks) > 0 THEN
        v_budget := v_budget - cardinality(v_looks);
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
            WHERE EXISTS (SELECT 1 FROM tenure.edge AS e WHERE (e.src, e.dst) > (w.job_id, w.after) AND e.src <= w.job_id);
            EXIT;
        END IF;
        WITH walked AS MATERIALIZED (
            SELECT w.nth, w.was, w.became, e.dst, e.kind
            FROM unnest(v_work) WITH ORDINALITY AS w(job_id, workflow_id, was, became, parent, after, nth)
            CROSS JOIN LATERAL (
                SELECT o.dst, o.kind
                FROM tenure.edge AS o
                WHERE (o.src, o.dst) > (w.job_id, w.after) AND o.src <= w.job_id
                ORDER BY o.src, o.dst
                LIMIT v_budget
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
            v_cancelled := tenure.cancel_blocked(ARRAY(SELECT s.job_id FROM unnest(v_step.skipped) AS s), 'upstream',
                'A task that it needs did not succeed.', p_now);
            v_changes := ARRAY(SELECT s FROM unnest(v_step.skipped) AS s WHERE s.job_id = ANY (v_cancelled));
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
        FROM tenure.escalation AS e
        JOIN tenure.job AS j ON j.id BETWEEN e.job_id AND e.job_id
        WHERE e.job_id = ANY (v_looks) AND e.state = 'open' AND j.finished_at IS NOT NULL
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
    SELECT coalesce(array_agg(ROW(s.id, s.workflow_id, s.outcome, s.became, s.parent, NULL)::tenure.task_change ORDER BY s.id), '{}')
    FROM (
        SELECT g.id, t.workflow_id, t.outcome, t.parent,
            CASE
                WHEN j.state = 'succeeded' THEN 'succeeded'
                WHEN j.state IN ('dead', 'failed') THEN CASE WHEN t.is_optional THEN 'tolerated' ELSE 'failed' END
                WHEN j.state = 'cancelled' THEN CASE WHEN j.failure_class = 'upstream' THEN 'skipped' ELSE 'cancelled' END
            END AS became
        FROM unnest(p_jobs) AS g(id)
        JOIN tenure.task AS t ON t.job_id BETWEEN g.id AND g.id
        JOIN tenure.job AS j ON j.id BETWEEN g.id AND g.id
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
    WHERE w.id BETWEEN d.workflow_id AND d.workflow_id;
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
        WHERE t.job_id BETWEEN i.parent AND i.parent
        RETURNING t.job_id
    )
    SELECT array_agg(c.job_id ORDER BY c.job_id) INTO v_fan_outs FROM changed AS c;
    IF v_fan_outs IS NOT NULL THEN
        v_walk := v_walk || tenure.end_fan_outs(v_fan_outs, p_now);
    END IF;
    RETURN v_walk;
END
$$;

-- edge_needs, edge_broken: what an edge adds to `needs` and `broken` of the task behind it, by how the task before it ended.
CREATE OR REPLACE FUNCTION tenure.edge_needs(p_kind text, p_outcome text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN p_outcome IS NULL THEN 1 WHEN p_outcome = 'succeeded' OR p_kind = 'ended' THEN 0 ELSE 1 END $$;

CREATE OR REPLACE FUNCTION tenure.edge_broken(p_kind text, p_outcome text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN p_outcome IS NULL OR p_outcome = 'succeeded' OR p_kind = 'ended' THEN 0 ELSE 1 END $$;

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
        WHERE t.job_id = ANY (p_jobs) AND t.outcome IS NULL AND NOT t.is_released
            AND (SELECT w.phase FROM tenure.workflow AS w WHERE w.id = t.workflow_id) = 'forward'
        RETURNING t.job_id, t.workflow_id, t.fan_out
    ), expanded AS (
        INSERT INTO tenure.workflow_event (kind, workflow_id, job_id, after)
        SELECT 'expand', r.workflow_id, r.job_id, '0' FROM released AS r WHERE r.fan_out IS NOT NULL
    )
    SELECT array_agg(r.job_id ORDER BY r.job_id) INTO v_jobs FROM released AS r WHERE r.fan_out IS NULL;
    IF v_jobs IS NULL THEN
        RETURN;
    END IF;
    -- As in tenure.queue_waiting.
    PERFORM 1 FROM tenure.job AS j WHERE j.id = ANY (v_jobs) AND j.state || '' = 'waiting' ORDER BY j.id FOR UPDATE;
    WITH woken AS (
        UPDATE tenure.job AS j
        SET state = 'queued',
            run_at = p_now,
            is_due = true,
            waiting_for = NULL,
            updated_at = p_now
        WHERE j.id = ANY (v_jobs) AND j.state || '' = 'waiting'
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
        WHERE t.workflow_id BETWEEN p_workflow AND p_workflow AND t.needs <= 0 AND t.broken <= 0 AND NOT t.is_released AND t.outcome IS NULL
        ORDER BY t.workflow_id, t.job_id
        LIMIT p_limit
    );
    PERFORM tenure.release_tasks(v_jobs, p_now);
    IF cardinality(v_jobs) >= p_limit THEN
        INSERT INTO tenure.workflow_event (kind, workflow_id) VALUES ('release', p_workflow);
    END IF;
    RETURN cardinality(v_jobs);
END
$$;

-- Looking at workflows: their state, tasks, graph and escalations. SQLite: workflow_reading.py.

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

CREATE OR REPLACE FUNCTION tenure.show_workflow(p_run tenure.workflow) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_array(
        (p_run).id, (p_run).kind, tenure.workflow_state(p_run), (p_run).phase, (p_run).total, (p_run).succeeded, (p_run).failed,
        (p_run).tolerated, (p_run).skipped, (p_run).cancelled, (p_run).policy, (p_run).profile, tenure.to_us((p_run).created_at),
        tenure.to_us((p_run).updated_at), tenure.to_us((p_run).finished_at), tenure.to_us((p_run).due_at), (p_run).key, (p_run).actor,
        (p_run).tenant, (p_run).error, (p_run).data)
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

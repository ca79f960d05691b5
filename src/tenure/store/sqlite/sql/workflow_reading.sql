-- Looking at workflows. PostgreSQL has the same in functions/workflow_reading.sql.

-- name: list_workflows
-- A running workflow is shown as waiting where no task that was released is queued or held.
SELECT *
FROM (
    SELECT w.id, w.kind,
        CASE WHEN w.state = 'running' AND w.phase <> 'loading' AND NOT EXISTS (
            SELECT 1
            FROM tenure_task AS t
            JOIN tenure_job AS j ON j.id = t.job_id
            WHERE t.workflow_id = w.id AND t.is_released = 1 AND t.outcome IS NULL AND j.state <> 'waiting'
        ) AND NOT EXISTS (SELECT 1 FROM tenure_workflow_event AS v WHERE v.workflow_id = w.id AND v.kind <> 'look')
        THEN 'waiting' ELSE w.state END AS state,
        w.phase, w.total, w.succeeded, w.failed, w.tolerated, w.skipped, w.cancelled, w.policy, w.profile, w.created_at, w.updated_at,
        w.finished_at, w.due_at, w.key, w.actor, w.tenant, w.error, w.data
    FROM tenure_workflow AS w
    WHERE (:id IS NULL OR w.id = :id)
        AND (json_array_length(:names) = 0 OR w.kind IN (SELECT value FROM json_each(:names)))
        AND (:after IS NULL OR w.id < :after)
        AND (json_array_length(:states) = 0 OR w.state IN (SELECT value FROM json_each(:states))
            OR w.state = 'running' AND 'waiting' IN (SELECT value FROM json_each(:states)))
) AS s
WHERE json_array_length(:states) = 0 OR s.state IN (SELECT value FROM json_each(:states))
ORDER BY s.id DESC
LIMIT :limit;

-- name: list_tasks
SELECT t.job_id, t.name, j.queue, j.kind,
    CASE WHEN j.state = 'waiting' AND t.is_released = 0 THEN 'blocked'
        WHEN t.outcome = 'skipped' THEN 'skipped'
        ELSE j.state END,
    t.outcome, max(t.needs, 0), t.depth, t.is_optional, j.attempt, j.claimed_at, j.finished_at, j.last_error, j.result
FROM tenure_task AS t
JOIN tenure_job AS j ON j.id = t.job_id
WHERE t.workflow_id = :id AND (:after IS NULL OR t.job_id > :after)
    AND (json_array_length(:names) = 0 OR t.name IN (SELECT value FROM json_each(:names)))
    AND (json_array_length(:outcomes) = 0 OR coalesce(t.outcome, 'open') IN (SELECT value FROM json_each(:outcomes)))
ORDER BY t.job_id
LIMIT :limit;

-- name: edges
SELECT e.src, e.dst, e.kind
FROM tenure_task AS t
JOIN tenure_edge AS e ON e.dst = t.job_id
WHERE t.workflow_id = :id
UNION ALL
SELECT t.parent, t.job_id, 'ok' FROM tenure_task AS t WHERE t.workflow_id = :id AND t.parent IS NOT NULL
ORDER BY 1, 2;

-- name: folded_nodes
-- Tasks by agent, type and depth: how many are in which state.
SELECT j.queue, j.kind, t.depth,
    CASE WHEN j.state = 'waiting' AND t.is_released = 0 THEN 'blocked'
        WHEN t.outcome = 'skipped' THEN 'skipped'
        ELSE j.state END AS shown,
    count(*), min(j.claimed_at), max(j.finished_at)
FROM tenure_task AS t
JOIN tenure_job AS j ON j.id = t.job_id
WHERE t.workflow_id = :id
GROUP BY 1, 2, 3, 4
ORDER BY 3, 1, 2, 4;

-- name: folded_edges
SELECT DISTINCT a.queue, a.kind, s.depth, b.queue, b.kind, d.depth, e.kind
FROM tenure_task AS d
JOIN tenure_edge AS e ON e.dst = d.job_id
JOIN tenure_task AS s ON s.job_id = e.src
JOIN tenure_job AS a ON a.id = e.src
JOIN tenure_job AS b ON b.id = e.dst
WHERE d.workflow_id = :id
ORDER BY 3, 1, 2, 6, 4, 5, 7;

-- name: escalation
SELECT e.id, e.workflow_id, w.kind, e.round, e.level, e.reason, e.detail, e.target, e.state, e.created_at, e.due_at, e.ended_at, e.person,
    e.job_id, e.answer, e.answered_by, e.note
FROM tenure_escalation AS e
JOIN tenure_workflow AS w ON w.id = e.workflow_id
WHERE e.id = ?;

-- name: list_escalations
SELECT e.id, e.workflow_id, w.kind, e.round, e.level, e.reason, e.detail, e.target, e.state, e.created_at, e.due_at, e.ended_at, e.person,
    e.job_id, e.answer, e.answered_by, e.note
FROM tenure_escalation AS e
JOIN tenure_workflow AS w ON w.id = e.workflow_id
WHERE (:workflow_id IS NULL OR e.workflow_id = :workflow_id)
    AND (:person IS NULL OR e.person = :person)
    AND (json_array_length(:states) = 0 OR e.state IN (SELECT value FROM json_each(:states)))
ORDER BY e.created_at, e.workflow_id, e.round, e.level
LIMIT :limit;

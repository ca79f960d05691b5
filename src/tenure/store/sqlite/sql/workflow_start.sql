-- Starting workflows and joining them. The rules stand in store/workflows.py; PostgreSQL has the same in functions/workflow_start.sql.

-- name: insert_workflow
INSERT INTO tenure_workflow (
    id, profile, kind, phase, total, missing, policy, key, dedup_slot, digest, due_at, actor, tenant, data, created_at, updated_at
)
VALUES (
    :id, :profile, :name, 'loading', :total, :total, :policy, :key, :slot, :digest, :due_at, :actor, :tenant, :data, :now, :now
)
ON CONFLICT DO NOTHING;

-- name: by_slot
-- The run that holds a key.
SELECT id, state, phase, digest FROM tenure_workflow WHERE dedup_slot = ?;

-- name: name_taken
-- A name that two tasks have. Tasks: [job_id, name] each.
SELECT name
FROM (
    SELECT value ->> 0 AS job_id, value ->> 1 AS name FROM json_each(:tasks)
    UNION
    SELECT t.job_id, t.name
    FROM json_each(:tasks) AS g
    CROSS JOIN tenure_task AS t ON t.workflow_id = :workflow_id AND t.name = g.value ->> 1
)
GROUP BY name
HAVING count(*) > 1
LIMIT 1;

-- name: block_jobs
-- Jobs that were just enqueued wait for what they need. A repeated page finds them waiting, or further on.
UPDATE tenure_job
SET state = 'waiting',
    waiting_for = 'needs'
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'queued' AND run_at = :never AND token = 0;

-- name: edge_astray
-- An edge that names a job which is no task of this workflow.
SELECT 1
FROM json_each(:edges) AS g
WHERE NOT EXISTS (SELECT 1 FROM tenure_task AS t WHERE t.job_id = g.value ->> 0 AND t.workflow_id = :workflow_id)
    OR NOT EXISTS (SELECT 1 FROM tenure_task AS t WHERE t.job_id = g.value ->> 1 AND t.workflow_id = :workflow_id)
LIMIT 1;

-- name: edge_back
-- An edge that does not lead to a task of greater depth.
SELECT 1
FROM json_each(:edges) AS g
CROSS JOIN tenure_task AS s ON s.job_id = g.value ->> 0
CROSS JOIN tenure_task AS d ON d.job_id = g.value ->> 1
WHERE s.depth >= d.depth AND :workflow_id IS NOT NULL
LIMIT 1;

-- name: insert_edges
INSERT INTO tenure_edge (src, dst, kind)
SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:edges)
WHERE true
ON CONFLICT DO NOTHING;

-- name: note_sent
UPDATE tenure_workflow SET missing = missing - :tasks WHERE id = :id;

-- name: is_complete
-- Whether every task of its graph has been sent.
SELECT 1 FROM tenure_workflow WHERE id = ? AND missing = 0;

-- name: begin
UPDATE tenure_workflow
SET phase = 'forward',
    updated_at = :now
WHERE id = :id AND phase = 'loading' AND state = 'running'
RETURNING state;

-- name: open_workflows
-- Which of these ids are workflows, and how they stand.
SELECT id, state FROM tenure_workflow WHERE id IN (SELECT value FROM json_each(:ids));

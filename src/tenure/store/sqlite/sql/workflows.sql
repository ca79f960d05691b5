-- Workflows: start, fold the ends of tasks, release, skip, cancel, retry, escalate. The rules stand in store/workflows.py; the same
-- statements stand in PostgreSQL's functions/workflows.sql.

-- name: insert_workflow
INSERT INTO tenure_workflow (
    id, profile, kind, phase, total, policy, key, dedup_slot, digest, due_at, actor, tenant, data, created_at, updated_at
)
VALUES (
    :id, :profile, :name, 'loading', :total, :policy, :key, :slot, :digest, :due_at, :actor, :tenant, :data, :now, :now
)
ON CONFLICT DO NOTHING;

-- name: by_slot
-- The run that holds a key.
SELECT id, state, phase, digest FROM tenure_workflow WHERE dedup_slot = ?;

-- name: insert_tasks
-- [job_id, name, needs, depth, is_optional, fan_out, parent, is_released] each.
INSERT INTO tenure_task (job_id, workflow_id, name, needs, depth, is_optional, fan_out, parent, is_released)
SELECT value ->> 0, :workflow_id, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7
FROM json_each(:tasks)
WHERE true
ON CONFLICT (job_id) DO NOTHING;

-- name: block_jobs
-- Jobs that were just enqueued wait for what they need. A repeated page finds them waiting, or further on.
UPDATE tenure_job
SET state = 'waiting',
    waiting_for = 'needs'
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'queued' AND run_at = :never AND token = 0;

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

-- name: is_complete
-- Whether every task of a workflow is there.
SELECT 1 FROM tenure_workflow AS w WHERE w.id = ? AND w.total = (SELECT count(*) FROM tenure_task AS t WHERE t.workflow_id = w.id);

-- name: insert_edges
INSERT INTO tenure_edge (src, dst, kind)
SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:edges)
WHERE true
ON CONFLICT DO NOTHING;

-- name: begin
UPDATE tenure_workflow
SET phase = 'forward',
    updated_at = :now
WHERE id = :id AND phase = 'loading' AND state = 'running'
RETURNING state;

-- name: open_workflows
-- Which of these ids are workflows, and how they stand.
SELECT id, state FROM tenure_workflow WHERE id IN (SELECT value FROM json_each(:ids));

-- name: grow
UPDATE tenure_workflow
SET total = total + :tasks,
    updated_at = :now
WHERE id = :id;

-- name: put_events
-- [kind, workflow_id, job_id, was, became, after] each.
INSERT INTO tenure_workflow_event (kind, workflow_id, job_id, was, became, after)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each(:events);

-- name: take_events
DELETE FROM tenure_workflow_event
WHERE seq IN (SELECT seq FROM tenure_workflow_event ORDER BY seq LIMIT :limit)
RETURNING seq, kind, workflow_id, job_id, was, became, after;

-- name: has_events
SELECT 1 FROM tenure_workflow_event LIMIT 1;

-- name: are_due
-- Whether there is something to fold, or a deadline or a level of escalation is over.
SELECT EXISTS (SELECT 1 FROM tenure_workflow_event)
    OR EXISTS (SELECT 1 FROM tenure_workflow WHERE due_at <= :now)
    OR EXISTS (SELECT 1 FROM tenure_escalation WHERE state = 'open' AND due_at <= :now);

-- name: has_spread
SELECT 1 FROM tenure_workflow_event WHERE workflow_id = ? AND kind = 'spread' AND kind <> 'look' LIMIT 1;

-- name: look
-- Tasks among these jobs whose end is counted otherwise than their job stands: [job, workflow, was, became, fan-out of which it is an item].
SELECT t.job_id, t.workflow_id, t.outcome,
    CASE j.state
        WHEN 'succeeded' THEN 'succeeded'
        WHEN 'dead' THEN CASE WHEN t.is_optional = 1 THEN 'tolerated' ELSE 'failed' END
        WHEN 'failed' THEN CASE WHEN t.is_optional = 1 THEN 'tolerated' ELSE 'failed' END
        WHEN 'cancelled' THEN CASE WHEN j.failure_class = 'upstream' THEN 'skipped' ELSE 'cancelled' END
    END AS became,
    t.parent
FROM (SELECT DISTINCT value AS id FROM json_each(:ids)) AS g
CROSS JOIN tenure_task AS t ON t.job_id = g.id
CROSS JOIN tenure_job AS j ON j.id = g.id
WHERE t.outcome IS NOT became;

-- name: count
-- [job_id, outcome] each.
UPDATE tenure_task
SET outcome = given.value ->> 1
FROM json_each(:changes) AS given
WHERE tenure_task.job_id = given.value ->> 0;

-- name: edges_of
-- Edges of these tasks ([job_id, after] each), in their order: [place, dst, kind].
SELECT w.key, e.dst, e.kind
FROM json_each(:work) AS w
CROSS JOIN tenure_edge AS e ON e.src = w.value ->> 0 AND e.dst > w.value ->> 1
LIMIT :limit;

-- name: meet
-- Edges were met, broken or mended: [job_id, change of needs, change of broken] each. fan_out comes as it is: SQLite 3.40 answers 1 to
-- any IS NOT NULL in the RETURNING of an UPDATE … FROM.
UPDATE tenure_task
SET needs = needs + (given.value ->> 1),
    broken = broken + (given.value ->> 2)
FROM json_each(:changes) AS given
WHERE tenure_task.job_id = given.value ->> 0
RETURNING job_id, workflow_id, needs, broken, is_released, outcome, fan_out, parent;

-- name: ready
-- Tasks that nothing keeps from being released.
SELECT job_id, fan_out IS NOT NULL
FROM tenure_task
WHERE workflow_id = :id AND needs <= 0 AND broken <= 0 AND is_released = 0 AND outcome IS NULL
ORDER BY job_id
LIMIT :limit;

-- name: release_tasks
UPDATE tenure_task SET is_released = 1 WHERE job_id IN (SELECT value FROM json_each(:ids));

-- name: hold_task
-- A fan-out that was released while its workflow is held: it is released again later.
UPDATE tenure_task SET is_released = 0 WHERE job_id = ?;

-- name: release_jobs
UPDATE tenure_job
SET state = 'queued',
    run_at = :now,
    is_due = 1,
    waiting_for = NULL,
    updated_at = :now
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'waiting'
RETURNING id, queue;

-- name: block_again
-- Jobs that ended without having run wait for what they need again.
UPDATE tenure_job
SET state = 'waiting',
    waiting_for = 'needs',
    run_at = :never,
    is_due = 0,
    attempt = 0,
    finished_at = NULL,
    failure_class = NULL,
    last_error = NULL,
    result = NULL,
    cancel_requested_at = NULL,
    updated_at = :now
WHERE id IN (SELECT value FROM json_each(:ids)) AND state IN ('cancelled', 'failed', 'succeeded');

-- name: cancel_jobs
-- Jobs that no worker holds are cancelled with their workflow, or because of a task that they need.
UPDATE tenure_job
SET state = 'cancelled',
    waiting_for = NULL,
    failure_class = :class,
    last_error = :error,
    finished_at = :now,
    dedup_slot = CASE WHEN substr(dedup_slot, 1, 1) = 'a' THEN NULL ELSE dedup_slot END,
    updated_at = :now
WHERE id IN (SELECT value FROM json_each(:ids)) AND state IN ('queued', 'waiting')
RETURNING id, step_token IS NOT NULL;

-- name: stop_jobs
-- Held jobs are asked to stop.
UPDATE tenure_job
SET cancel_requested_at = coalesce(cancel_requested_at, :now),
    updated_at = :now
WHERE id IN (SELECT value FROM json_each(:ids)) AND state IN ('leased', 'running')
RETURNING id;

-- name: open_tasks
-- Tasks that have not ended, in pages; with `blocked` only those that were not released.
SELECT job_id, workflow_id, parent
FROM tenure_task
WHERE workflow_id = :id AND outcome IS NULL AND job_id > :after AND (is_released = 0 OR NOT :blocked)
ORDER BY job_id
LIMIT :limit;

-- name: ended_tasks
-- Tasks with one outcome, in pages, for a retry.
SELECT t.job_id, t.workflow_id, t.parent, t.is_released, t.fan_out IS NOT NULL, t.items, j.failure_class
FROM tenure_task AS t
JOIN tenure_job AS j ON j.id = t.job_id
WHERE t.workflow_id = :id AND t.outcome = :outcome AND t.job_id > :after
ORDER BY t.job_id
LIMIT :limit;

-- name: item_ended
-- [job_id of the fan-out, items that ended more, items that failed more] each.
UPDATE tenure_task
SET items_ended = items_ended + (given.value ->> 1),
    items_failed = items_failed + (given.value ->> 2)
FROM json_each(:changes) AS given
WHERE tenure_task.job_id = given.value ->> 0
RETURNING job_id;

-- name: fan_outs
-- Fan-outs among these tasks, with all that decides about their end.
SELECT job_id, workflow_id, outcome, items, items_made, items_ended, items_failed, is_optional, fan_out
FROM tenure_task
WHERE job_id IN (SELECT value FROM json_each(:ids)) AND fan_out IS NOT NULL;

-- name: end_fan_out
UPDATE tenure_job
SET state = :state,
    waiting_for = NULL,
    result = :result,
    failure_class = :class,
    last_error = :error,
    finished_at = :now,
    updated_at = :now
WHERE id = :id AND state = 'waiting'
RETURNING id, step_token IS NOT NULL;

-- name: expansion
-- A fan-out to be expanded: its task, its job, and the result that it reads.
SELECT t.workflow_id, t.name, t.depth, t.outcome, t.is_released, t.items, t.fan_out, j.queue, j.kind, j.payload, j.priority, j.max_attempts,
    j.tenant, j.actor, (SELECT s.result FROM tenure_job AS s WHERE s.id = t.fan_out ->> 'of')
FROM tenure_task AS t
JOIN tenure_job AS j ON j.id = t.job_id
WHERE t.job_id = ?;

-- name: made_items
UPDATE tenure_task
SET items = :items,
    items_made = :made
WHERE job_id = :job_id;

-- name: forget_items
-- A fan-out that never had items is expanded anew.
UPDATE tenure_task SET items = NULL WHERE job_id = ?;

-- name: tally
-- Add to the counts of a workflow; answers how it stands.
UPDATE tenure_workflow
SET succeeded = succeeded + :succeeded,
    failed = failed + :failed,
    tolerated = tolerated + :tolerated,
    skipped = skipped + :skipped,
    cancelled = cancelled + :cancelled,
    updated_at = :now
WHERE id = :id
RETURNING id, kind, state, phase, total, succeeded, failed, tolerated, skipped, cancelled, policy, is_judged, round;

-- name: standing
SELECT id, kind, state, phase, total, succeeded, failed, tolerated, skipped, cancelled, policy, is_judged, round
FROM tenure_workflow
WHERE id = ?;

-- name: move
UPDATE tenure_workflow
SET state = :state,
    phase = :phase,
    error = CASE WHEN :keeps_error THEN error ELSE :error END,
    is_judged = :is_judged,
    round = :round,
    policy = :policy,
    finished_at = CASE WHEN :state IN ('completed', 'failed', 'cancelled') THEN :now END,
    due_at = CASE WHEN :state IN ('completed', 'failed', 'cancelled') THEN NULL ELSE due_at END,
    updated_at = :now
WHERE id = :id;

-- name: late
-- Workflows whose deadline has passed.
SELECT id FROM tenure_workflow WHERE due_at <= :now ORDER BY due_at LIMIT :limit;

-- name: clear_deadline
UPDATE tenure_workflow SET due_at = NULL WHERE id = ?;

-- name: insert_escalation
INSERT INTO tenure_escalation (id, workflow_id, round, level, reason, detail, target, person, job_id, due_at, created_at)
VALUES (:id, :workflow_id, :round, :level, :reason, :detail, :target, :person, :job_id, :due_at, :now)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: unanswered
-- Open escalations whose time is over.
SELECT id FROM tenure_escalation WHERE state = 'open' AND due_at <= :now ORDER BY due_at LIMIT :limit;

-- name: asked_jobs
-- Open escalations that were put to these jobs: [escalation, job's state, its result].
SELECT e.id, j.state, j.result, j.queue
FROM tenure_escalation AS e
JOIN tenure_job AS j ON j.id = e.job_id
WHERE e.job_id IN (SELECT value FROM json_each(:ids)) AND e.state = 'open'
    AND j.state IN ('succeeded', 'failed', 'dead', 'cancelled');

-- name: end_escalation
UPDATE tenure_escalation
SET state = :state,
    ended_at = :now,
    answer = :answer,
    answered_by = :answered_by,
    note = :note
WHERE id = :id AND state = 'open'
RETURNING id;

-- name: close_escalations
-- The questions about a workflow that are no longer needed; answers the jobs that asked them.
UPDATE tenure_escalation
SET state = 'closed',
    ended_at = :now
WHERE workflow_id = :id AND state = 'open'
RETURNING job_id;

-- name: open_reason
-- Why a workflow is escalated.
SELECT reason FROM tenure_escalation WHERE workflow_id = ? AND state = 'open' ORDER BY level DESC LIMIT 1;

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

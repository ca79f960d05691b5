-- Folding: ends of tasks are counted, what they release is queued, what they break is skipped; cancels and retries by pages. The rules
-- stand in store/workflows.py; PostgreSQL has the same in functions/workflow_fold.sql, workflow_fan_out.sql and workflow_pages.sql.

-- name: take_events
DELETE FROM tenure_workflow_event
WHERE seq IN (SELECT seq FROM tenure_workflow_event ORDER BY seq LIMIT :limit)
RETURNING seq, kind, workflow_id, job_id, was, became, after;

-- name: has_events
SELECT 1 FROM tenure_workflow_event LIMIT 1;

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

-- name: asked_jobs
-- Open escalations that were put to these jobs: [escalation, job's state, its result].
SELECT e.id, j.state, j.result, j.queue
FROM tenure_escalation AS e
JOIN tenure_job AS j ON j.id = e.job_id
WHERE e.job_id IN (SELECT value FROM json_each(:ids)) AND e.state = 'open'
    AND j.state IN ('succeeded', 'failed', 'dead', 'cancelled');

-- name: count
-- [job_id, outcome] each.
UPDATE tenure_task
SET outcome = given.value ->> 1
FROM json_each(:changes) AS given
WHERE tenure_task.job_id = given.value ->> 0;

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

-- name: edges_of
-- Edges of these tasks ([job_id, after] each), in their order: [place, dst, kind].
SELECT w.key, e.dst, e.kind
FROM json_each(:work) AS w
CROSS JOIN tenure_edge AS e ON e.src = w.value ->> 0 AND e.dst > w.value ->> 1
LIMIT :limit;

-- name: with_edges
-- Which of these tasks ([job_id, after] each) have edges left to walk.
SELECT w.key
FROM json_each(:work) AS w
WHERE EXISTS (SELECT 1 FROM tenure_edge AS e WHERE e.src = w.value ->> 0 AND e.dst > w.value ->> 1);

-- name: meet
-- Edges were met, broken or mended: [job_id, change of needs, change of broken] each. fan_out comes as it is: SQLite 3.40 answers 1 to
-- any IS NOT NULL in the RETURNING of an UPDATE … FROM.
UPDATE tenure_task
SET needs = needs + (given.value ->> 1),
    broken = broken + (given.value ->> 2)
FROM json_each(:changes) AS given
WHERE tenure_task.job_id = given.value ->> 0
RETURNING job_id, workflow_id, needs, broken, is_released, outcome, fan_out, parent;

-- name: release_tasks
UPDATE tenure_task SET is_released = 1 WHERE job_id IN (SELECT value FROM json_each(:ids));

-- name: release_jobs
UPDATE tenure_job
SET state = 'queued',
    run_at = :now,
    is_due = 1,
    waiting_for = NULL,
    updated_at = :now
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'waiting'
RETURNING id, queue;

-- name: ready
-- Tasks that nothing keeps from being released.
SELECT job_id, fan_out IS NOT NULL
FROM tenure_task INDEXED BY task_ready_idx
WHERE workflow_id = :id AND needs <= 0 AND broken <= 0 AND is_released = 0 AND outcome IS NULL
ORDER BY job_id
LIMIT :limit;

-- name: has_spread
SELECT 1 FROM tenure_workflow_event WHERE workflow_id = ? AND kind = 'spread' AND kind <> 'look' LIMIT 1;

-- name: expansion
-- A fan-out to be expanded: its task, its job, and the result that it reads.
SELECT t.workflow_id, t.name, t.depth, t.outcome, t.is_released, t.items, t.fan_out, j.queue, j.kind, j.payload, j.priority, j.max_attempts,
    j.tenant, j.actor, (SELECT s.result FROM tenure_job AS s WHERE s.id = t.fan_out ->> 'of')
FROM tenure_task AS t
JOIN tenure_job AS j ON j.id = t.job_id
WHERE t.job_id = ?;

-- name: hold_task
-- A fan-out that was released while its workflow is held: it is released again later.
UPDATE tenure_task SET is_released = 0 WHERE job_id = ?;

-- name: made_items
UPDATE tenure_task
SET items = :items,
    items_made = :made
WHERE job_id = :job_id;

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

-- name: open_tasks
-- Tasks that have not ended, in pages: whether each was released, and whether its job has steps.
SELECT t.job_id, t.is_released, (SELECT j.step_token IS NOT NULL AND j.finished_at IS NULL FROM tenure_job AS j WHERE j.id = t.job_id)
FROM tenure_task AS t
WHERE t.workflow_id = :id AND t.outcome IS NULL AND t.job_id > :after
ORDER BY t.job_id
LIMIT :limit;

-- name: stop_jobs
-- Held jobs are asked to stop; those that were not before carry the mark until their end.
UPDATE tenure_job
SET cancel_requested_at = coalesce(cancel_requested_at, :now),
    failure_class = CASE WHEN cancel_requested_at IS NULL THEN :mark ELSE failure_class END,
    updated_at = :now
WHERE id IN (SELECT value FROM json_each(:ids)) AND state IN ('leased', 'running')
RETURNING id;

-- name: ended_tasks
-- Tasks with one outcome, in pages, for a retry.
SELECT t.job_id, t.workflow_id, t.parent, t.is_released, t.fan_out IS NOT NULL, t.items, j.failure_class
FROM tenure_task AS t
JOIN tenure_job AS j ON j.id = t.job_id
WHERE t.workflow_id = :id AND t.outcome = :outcome AND t.job_id > :after
ORDER BY t.job_id
LIMIT :limit;

-- The row of a workflow, its tasks, and what is left to fold of it.

-- name: run
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

-- name: insert_tasks
-- [job_id, name, needs, depth, is_optional, fan_out, parent, is_released] each.
INSERT INTO tenure_task (job_id, workflow_id, name, needs, depth, is_optional, fan_out, parent, is_released)
SELECT value ->> 0, :workflow_id, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7
FROM json_each(:tasks)
WHERE true
ON CONFLICT (job_id) DO NOTHING;

-- name: grow
UPDATE tenure_workflow
SET total = total + :tasks,
    updated_at = :now
WHERE id = :id;

-- name: put_events
-- [kind, workflow_id, job_id, was, became, after] each.
INSERT INTO tenure_workflow_event (kind, workflow_id, job_id, was, became, after)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each(:events);

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

-- The ladder of escalation. PostgreSQL has the same in functions/workflow_judging.sql.

-- name: insert_escalation
INSERT INTO tenure_escalation (id, workflow_id, round, level, reason, detail, target, person, job_id, due_at, created_at)
VALUES (:id, :workflow_id, :round, :level, :reason, :detail, :target, :person, :job_id, :due_at, :now)
ON CONFLICT DO NOTHING
RETURNING id;

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

-- What is due by time. PostgreSQL has the same in functions/workflow_acts.sql.

-- name: are_due
-- Whether there is something to fold, or a deadline or a level of escalation is over.
SELECT EXISTS (SELECT 1 FROM tenure_workflow_event)
    OR EXISTS (SELECT 1 FROM tenure_workflow WHERE due_at <= :now AND state = 'running')
    OR EXISTS (SELECT 1 FROM tenure_escalation WHERE state = 'open' AND due_at <= :now);

-- name: late
-- Workflows whose deadline has passed. One that is escalated is judged by it once it goes on.
SELECT id FROM tenure_workflow WHERE due_at <= :now AND state = 'running' ORDER BY due_at LIMIT :limit;

-- name: clear_deadline
UPDATE tenure_workflow SET due_at = NULL WHERE id = ?;

-- name: unanswered
-- Open escalations whose time is over.
SELECT id, workflow_id FROM tenure_escalation WHERE state = 'open' AND due_at <= :now ORDER BY due_at LIMIT :limit;

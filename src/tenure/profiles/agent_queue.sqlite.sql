-- agent_queue (specification 000) on SQLite: one view that reads as its table AgentJob, and enqueues what is inserted into it.
-- Moments are text, as SQLite's own functions make and read it: datetime('now', '-5 minutes') compares with them.
DROP VIEW IF EXISTS agent_queue_agent_jobs;
CREATE VIEW agent_queue_agent_jobs AS
SELECT
    s.id,
    s.kind AS type,
    CASE s.stage
        WHEN 'due' THEN 'queued'
        WHEN 'later' THEN 'queued'
        WHEN 'retry' THEN 'queued'
        WHEN 'waiting' THEN 'queued'
        WHEN 'leased' THEN 'running'
        WHEN 'running' THEN 'running'
        WHEN 'succeeded' THEN 'succeeded'
        WHEN 'cancelled' THEN 'cancelled'
        ELSE 'failed'
    END AS status,
    s.priority,
    s.payload,
    s.created_by_user_id,
    s.requested_by_user_id,
    s.affinity_key,
    s.lease_owner AS claimed_by,
    datetime(s.lease_until / 1000000, 'unixepoch') || '.' || substr('00' || (s.lease_until / 1000 % 1000), -3) AS lease_expires_at,
    CASE WHEN s.stage IN ('due', 'later', 'retry', 'waiting') THEN s.attempt + 1 ELSE max(s.attempt, 1) END AS attempt,
    s.max_attempts,
    s.result_summary,
    s.last_error AS error_message,
    s.artifacts_path,
    datetime(s.created_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.created_at / 1000 % 1000), -3) AS created_at,
    datetime(s.updated_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.updated_at / 1000 % 1000), -3) AS updated_at,
    datetime(s.started_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.started_at / 1000 % 1000), -3) AS started_at,
    s.finished_text AS finished_at
FROM tenure_shown AS s
WHERE s.of_profile = 'agent_queue';

CREATE TRIGGER agent_queue_enqueue INSTEAD OF INSERT ON agent_queue_agent_jobs
BEGIN
    SELECT RAISE(ABORT, 'A job begins as queued, at attempt 1; its moves set claimed_by, lease_expires_at, result_summary, error_message, started_at and finished_at. Nothing was enqueued.')
    WHERE coalesce(NEW.status, 'queued') <> 'queued' OR coalesce(NEW.attempt, 1) <> 1
        OR coalesce(NEW.claimed_by, NEW.lease_expires_at, NEW.result_summary, NEW.error_message, NEW.started_at, NEW.finished_at) IS NOT NULL;
    INSERT INTO tenure_inbox (
        id, profile, queue, kind, payload, priority, max_attempts, created_by_user_id, requested_by_user_id, affinity_key, artifacts_path
    )
    VALUES (
        NEW.id, 'agent_queue', 'agent_queue', NEW.type, coalesce(NEW.payload, '{}'), NEW.priority, NEW.max_attempts,
        NEW.created_by_user_id, NEW.requested_by_user_id, NEW.affinity_key, NEW.artifacts_path
    );
END;

-- SQLite's RETURNING shows what was given. RETURNING (SELECT id FROM agent_queue_agent_jobs_inserted) shows what was made, or found under the key.
DROP VIEW IF EXISTS agent_queue_agent_jobs_inserted;
CREATE VIEW agent_queue_agent_jobs_inserted AS
SELECT j.id AS id, j.kind AS type, i.is_duplicate AS duplicate
FROM tenure_inserted AS i
JOIN tenure_job AS j ON j.id = i.id
WHERE i.profile = 'agent_queue';

-- Without these an UPDATE or DELETE … RETURNING would answer as if it had been done.
CREATE TRIGGER agent_queue_refuse_update INSTEAD OF UPDATE ON agent_queue_agent_jobs
BEGIN
    SELECT RAISE(ABORT, 'A job is not changed by UPDATE: it could come from a worker that lost its lease. Nothing was changed. Claim, complete and fail jobs through App or the tenure command; tenure jobs cancel is for operators.');
END;
CREATE TRIGGER agent_queue_refuse_delete INSTEAD OF DELETE ON agent_queue_agent_jobs
BEGIN
    SELECT RAISE(ABORT, 'A job is not removed by DELETE: its worker would work for nothing, and no record of it would remain. Nothing was changed. Use tenure jobs cancel for one that is not done; tenure prune removes what ended long ago.');
END;

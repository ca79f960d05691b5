-- agent_queue (specification 000) on PostgreSQL: one view that reads as its table AgentJob, and enqueues what is inserted into it.
CREATE SCHEMA IF NOT EXISTS agent_queue;

-- `attempt` starts at 1: a queued job shows the attempt it waits for.
CREATE OR REPLACE VIEW agent_queue.agent_jobs AS
SELECT
    s.id,
    s.kind::text AS type,
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
    s.payload::jsonb AS payload,
    s.created_by_user_id,
    s.requested_by_user_id,
    s.affinity_key,
    s.lease_owner AS claimed_by,
    s.lease_until AS lease_expires_at,
    CASE WHEN s.stage IN ('due', 'later', 'retry', 'waiting') THEN s.attempt + 1 ELSE greatest(s.attempt, 1) END AS attempt,
    s.max_attempts::integer AS max_attempts,
    s.result_summary,
    s.last_error AS error_message,
    s.artifacts_path,
    s.created_at,
    s.updated_at,
    s.started_at,
    s.finished_at
FROM tenure.shown AS s
WHERE s.of_profile = 'agent_queue';

-- The expression is that of the view above.
SELECT tenure.index_view('agent_queue', $status$
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
    END
$status$);

-- enqueue_agent_job: INSERT INTO agent_jobs. RETURNING shows the row as it stands.
CREATE OR REPLACE FUNCTION agent_queue.enqueue_agent_job() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_put json;
BEGIN
    IF coalesce(NEW.status, 'queued') <> 'queued' OR coalesce(NEW.attempt, 1) <> 1
        OR num_nonnulls(NEW.claimed_by, NEW.lease_expires_at, NEW.result_summary, NEW.error_message, NEW.started_at, NEW.finished_at) > 0
    THEN
        RAISE EXCEPTION 'A job begins as queued, at attempt 1; its moves set claimed_by, lease_expires_at, result_summary, error_message, started_at and finished_at. '
            'Nothing was enqueued.' USING ERRCODE = 'TN008';
    END IF;
    v_put := tenure.put_job('agent_queue', 'agent_queue', NEW.type, json_build_object(
        'i', NEW.id, 'p', coalesce(NEW.payload, '{}'), 'r', NEW.priority, 'm', NEW.max_attempts,
        'x', json_strip_nulls(json_build_object(
            'created_by_user_id', NEW.created_by_user_id, 'requested_by_user_id', NEW.requested_by_user_id,
            'affinity_key', NEW.affinity_key, 'artifacts_path', NEW.artifacts_path))));
    SELECT * INTO NEW FROM agent_queue.agent_jobs AS a WHERE a.id = (v_put ->> 'id')::uuid;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER enqueue INSTEAD OF INSERT ON agent_queue.agent_jobs
FOR EACH ROW EXECUTE FUNCTION agent_queue.enqueue_agent_job();

-- refuse_change: an UPDATE or DELETE of agent_jobs is an error even if it matches no row, so that a mistaken statement is noticed.
CREATE OR REPLACE FUNCTION agent_queue.refuse_change() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'Jobs are not changed by % on agent_queue.agent_jobs: a write that names no grant could come from a worker that lost its lease. '
        'Nothing was changed.', TG_OP
        USING ERRCODE = 'TN008', HINT = 'Claim, complete and fail jobs through App, the tenure command or tenure.claim and tenure.settle; '
            'tenure.cancel is for operators.';
END
$$;
CREATE OR REPLACE TRIGGER refuse INSTEAD OF UPDATE OR DELETE ON agent_queue.agent_jobs
FOR EACH ROW EXECUTE FUNCTION agent_queue.refuse_change();
CREATE OR REPLACE TRIGGER refuse_all BEFORE UPDATE OR DELETE ON agent_queue.agent_jobs
FOR EACH STATEMENT EXECUTE FUNCTION agent_queue.refuse_change();

SELECT tenure.hand_over('agent_queue', '{
    "SELECT ON agent_jobs": "worker reader operator admin",
    "SELECT (id) ON agent_jobs": "producer",
    "INSERT ON agent_jobs": "producer worker operator admin"
}');

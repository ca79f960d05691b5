-- outbox (specification 004) on PostgreSQL: the jobs table as a view, and enqueues what is inserted into it.
CREATE SCHEMA IF NOT EXISTS outbox;

-- `locked_at` is when the lock was taken or last renewed: it is older than the timeout if the lock is stale.
CREATE OR REPLACE VIEW outbox.jobs AS
SELECT
    s.id,
    s.kind::text AS type,
    s.payload::text AS payload,
    CASE s.stage
        WHEN 'due' THEN 'pending'
        WHEN 'later' THEN 'pending'
        WHEN 'retry' THEN 'pending'
        WHEN 'waiting' THEN 'pending'
        WHEN 'leased' THEN 'claimed'
        WHEN 'running' THEN 'claimed'
        WHEN 'succeeded' THEN 'completed'
        ELSE 'failed'
    END AS status,
    s.priority,
    s.attempt::integer AS attempts,
    s.max_attempts::integer AS max_attempts,
    s.last_error,
    s.lease_owner AS locked_by,
    CASE WHEN s.lease_until IS NOT NULL THEN s.updated_at END AS locked_at,
    s.created_at,
    s.claimed_at,
    s.finished_at AS completed_at,
    s.idempotency_key
FROM tenure.shown AS s
WHERE s.of_profile = 'outbox';

-- The expression is that of the view above.
SELECT tenure.index_view('outbox', $status$
    CASE s.stage
        WHEN 'due' THEN 'pending'
        WHEN 'later' THEN 'pending'
        WHEN 'retry' THEN 'pending'
        WHEN 'waiting' THEN 'pending'
        WHEN 'leased' THEN 'claimed'
        WHEN 'running' THEN 'claimed'
        WHEN 'succeeded' THEN 'completed'
        ELSE 'failed'
    END
$status$);
-- The specification's own: for the poll, and by type and key.
SELECT tenure.index_look('outbox', 'order', $columns$
    (
    CASE s.stage
        WHEN 'due' THEN 'pending'
        WHEN 'later' THEN 'pending'
        WHEN 'retry' THEN 'pending'
        WHEN 'waiting' THEN 'pending'
        WHEN 'leased' THEN 'claimed'
        WHEN 'running' THEN 'claimed'
        WHEN 'succeeded' THEN 'completed'
        ELSE 'failed'
    END
    ),
    s.priority DESC,
    s.created_at
$columns$);
SELECT tenure.index_look('outbox', 'key', 's.kind, s.idempotency_key');

CREATE OR REPLACE FUNCTION outbox.enqueue_job() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_put json;
BEGIN
    IF coalesce(NEW.status, 'pending') <> 'pending' OR coalesce(NEW.attempts, 0) <> 0
        OR num_nonnulls(NEW.last_error, NEW.locked_by, NEW.locked_at, NEW.claimed_at, NEW.completed_at) > 0
    THEN
        RAISE EXCEPTION 'A job begins as pending, with no attempts made; its moves set last_error, locked_by, locked_at, claimed_at and completed_at. '
            'Nothing was enqueued.' USING ERRCODE = 'TN008';
    END IF;
    v_put := tenure.put_job('outbox', 'outbox', NEW.type, json_build_object(
        'i', NEW.id, 'p', coalesce(NEW.payload, '{}')::json, 'r', NEW.priority, 'm', NEW.max_attempts, 'k', NEW.idempotency_key));
    SELECT * INTO NEW FROM outbox.jobs AS j WHERE j.id = (v_put ->> 'id')::uuid;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER enqueue INSTEAD OF INSERT ON outbox.jobs
FOR EACH ROW EXECUTE FUNCTION outbox.enqueue_job();

-- refuse_change: an UPDATE or DELETE of jobs is an error even if it matches no row, so that a mistaken statement is noticed.
CREATE OR REPLACE FUNCTION outbox.refuse_change() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'Jobs are not changed by % on outbox.jobs: a write that names no grant could come from a worker that lost its lease. '
        'Nothing was changed.', TG_OP
        USING ERRCODE = 'TN008', HINT = 'Claim, complete and fail jobs through App, the tenure command or tenure.claim and tenure.settle; '
            'tenure.cancel and tenure.revive are for operators.';
END
$$;
CREATE OR REPLACE TRIGGER refuse INSTEAD OF UPDATE OR DELETE ON outbox.jobs
FOR EACH ROW EXECUTE FUNCTION outbox.refuse_change();
CREATE OR REPLACE TRIGGER refuse_all BEFORE UPDATE OR DELETE ON outbox.jobs
FOR EACH STATEMENT EXECUTE FUNCTION outbox.refuse_change();

SELECT tenure.hand_over('outbox', '{
    "SELECT ON jobs": "worker reader operator admin",
    "SELECT (id) ON jobs": "producer",
    "INSERT ON jobs": "producer worker operator admin"
}');

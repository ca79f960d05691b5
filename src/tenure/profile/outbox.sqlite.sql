-- outbox (specification 004) on SQLite: the jobs table as a view, and enqueues what is inserted into it.
-- Moments are text, as SQLite's own functions make and read it: datetime('now', '-5 minutes') compares with them.
-- `locked_at` is when the lock was taken or last renewed: it is older than the timeout if the lock is stale.
DROP VIEW IF EXISTS outbox_jobs;
CREATE VIEW outbox_jobs AS
SELECT
    s.id,
    s.kind AS type,
    s.payload,
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
    s.attempt AS attempts,
    s.max_attempts,
    s.last_error,
    s.lease_owner AS locked_by,
    CASE WHEN s.lease_until IS NOT NULL THEN datetime(s.updated_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.updated_at / 1000 % 1000), -3) END AS locked_at,
    datetime(s.created_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.created_at / 1000 % 1000), -3) AS created_at,
    datetime(s.claimed_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.claimed_at / 1000 % 1000), -3) AS claimed_at,
    s.finished_text AS completed_at,
    s.idempotency_key
FROM tenure_shown AS s
WHERE s.of_profile = 'outbox';

CREATE TRIGGER outbox_enqueue INSTEAD OF INSERT ON outbox_jobs
BEGIN
    SELECT RAISE(ABORT, 'A job begins as pending, with no attempts made. Nothing was enqueued.')
    WHERE coalesce(NEW.status, 'pending') <> 'pending' OR coalesce(NEW.attempts, 0) <> 0;
    INSERT INTO tenure_inbox (id, profile, queue, kind, payload, priority, max_attempts, key)
    VALUES (
        NEW.id, 'outbox', 'outbox', NEW.type, coalesce(NEW.payload, '{}'), NEW.priority, NEW.max_attempts, NEW.idempotency_key
    );
END;

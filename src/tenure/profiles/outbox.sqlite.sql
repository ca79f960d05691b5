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

-- The specification's own indexes: by type and key, and for the poll. `profile` and `state` are among the columns because SQLite, which has no
-- statistics here, takes the index of which a branch of the view fixes most columns.
CREATE INDEX IF NOT EXISTS job_outbox_key_idx
ON tenure_job (idempotency_key, kind, state, profile) WHERE idempotency_key IS NOT NULL AND profile = 'outbox';
CREATE INDEX IF NOT EXISTS job_outbox_order_idx
ON tenure_job (profile, is_due, priority DESC, datetime(created_at / 1000000, 'unixepoch') || '.' || substr('00' || (created_at / 1000 % 1000), -3))
WHERE state = 'queued' AND (failure_class IS NULL OR attempt = 0) AND profile = 'outbox';
CREATE INDEX IF NOT EXISTS job_outbox_retry_idx
ON tenure_job (profile, priority DESC, datetime(created_at / 1000000, 'unixepoch') || '.' || substr('00' || (created_at / 1000 % 1000), -3))
WHERE state = 'queued' AND failure_class IS NOT NULL AND attempt > 0 AND profile = 'outbox';
CREATE INDEX IF NOT EXISTS job_outbox_asleep_idx
ON tenure_job (profile, priority DESC, datetime(created_at / 1000000, 'unixepoch') || '.' || substr('00' || (created_at / 1000 % 1000), -3))
WHERE state = 'waiting' AND profile = 'outbox';

CREATE TRIGGER outbox_enqueue INSTEAD OF INSERT ON outbox_jobs
BEGIN
    SELECT RAISE(ABORT, 'A job begins as pending, with no attempts made; its moves set last_error, locked_by, locked_at, claimed_at and completed_at. Nothing was enqueued.')
    WHERE coalesce(NEW.status, 'pending') <> 'pending' OR coalesce(NEW.attempts, 0) <> 0
        OR coalesce(NEW.last_error, NEW.locked_by, NEW.locked_at, NEW.claimed_at, NEW.completed_at) IS NOT NULL;
    INSERT INTO tenure_inbox (id, profile, queue, kind, payload, priority, max_attempts, key)
    VALUES (
        NEW.id, 'outbox', 'outbox', NEW.type, coalesce(NEW.payload, '{}'), NEW.priority, NEW.max_attempts, NEW.idempotency_key
    );
END;

-- SQLite's RETURNING shows what was given. RETURNING (SELECT id FROM outbox_jobs_inserted) shows what was made, or found under the key.
DROP VIEW IF EXISTS outbox_jobs_inserted;
CREATE VIEW outbox_jobs_inserted AS
SELECT j.id AS id, j.kind AS type, i.is_duplicate AS duplicate
FROM tenure_inserted AS i
JOIN tenure_job AS j ON j.id = i.id
WHERE i.profile = 'outbox';

-- Without these an UPDATE or DELETE … RETURNING would answer as if it had been done.
CREATE TRIGGER outbox_refuse_update INSTEAD OF UPDATE ON outbox_jobs
BEGIN
    SELECT RAISE(ABORT, 'A job is not changed by UPDATE: it could come from a worker that lost its lease. Nothing was changed. Claim, complete and fail jobs through App or the tenure command; tenure jobs cancel and tenure jobs revive are for operators.');
END;
CREATE TRIGGER outbox_refuse_delete INSTEAD OF DELETE ON outbox_jobs
BEGIN
    SELECT RAISE(ABORT, 'A job is not removed by DELETE: its worker would work for nothing, and no record of it would remain. Nothing was changed. Use tenure jobs cancel for one that is not done; tenure prune removes what ended long ago.');
END;

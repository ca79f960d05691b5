-- orchestrator (specification 003) on SQLite: its two tables as views. INSERT INTO tasks enqueues; workers are read here, and
-- register, beat and lead through their own calls.
-- Moments are text, as SQLite's own functions make and read it: datetime('now', '-5 minutes') compares with them.
DROP VIEW IF EXISTS orchestrator_tasks;
CREATE VIEW orchestrator_tasks AS
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
        WHEN 'running' THEN 'running'
        WHEN 'succeeded' THEN 'completed'
        WHEN 'dead' THEN 'dead_letter'
        ELSE 'failed'
    END AS status,
    s.priority,
    s.idempotency_key,
    s.lease_owner AS worker_id,
    datetime(s.created_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.created_at / 1000 % 1000), -3) AS created_at,
    datetime(s.claimed_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.claimed_at / 1000 % 1000), -3) AS claimed_at,
    datetime(s.started_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.started_at / 1000 % 1000), -3) AS started_at,
    s.finished_text AS completed_at,
    datetime(s.updated_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.updated_at / 1000 % 1000), -3) AS updated_at,
    s.attempt AS attempts,
    s.max_attempts - 1 AS max_retries,
    s.last_error,
    CASE s.stage WHEN 'retry' THEN datetime(s.run_at / 1000000, 'unixepoch') || '.' || substr('00' || (s.run_at / 1000 % 1000), -3) END AS next_retry_at
FROM tenure_shown AS s
WHERE s.of_profile = 'orchestrator';

-- The specification's own indexes: by type and key, what can be claimed, by worker. `profile` and `state` are among the columns because SQLite, which has no
-- statistics here, takes the index of which a branch of the view fixes most columns.
CREATE INDEX IF NOT EXISTS job_orchestrator_key_idx
ON tenure_job (idempotency_key, kind, state, profile) WHERE idempotency_key IS NOT NULL AND profile = 'orchestrator';
CREATE INDEX IF NOT EXISTS job_orchestrator_order_idx
ON tenure_job (profile, is_due, priority DESC, datetime(created_at / 1000000, 'unixepoch') || '.' || substr('00' || (created_at / 1000 % 1000), -3))
WHERE state = 'queued' AND (failure_class IS NULL OR attempt = 0) AND profile = 'orchestrator';
CREATE INDEX IF NOT EXISTS job_orchestrator_retry_idx
ON tenure_job (profile, priority DESC, datetime(created_at / 1000000, 'unixepoch') || '.' || substr('00' || (created_at / 1000 % 1000), -3))
WHERE state = 'queued' AND failure_class IS NOT NULL AND attempt > 0 AND profile = 'orchestrator';
CREATE INDEX IF NOT EXISTS job_orchestrator_asleep_idx
ON tenure_job (profile, priority DESC, datetime(created_at / 1000000, 'unixepoch') || '.' || substr('00' || (created_at / 1000 % 1000), -3))
WHERE state = 'waiting' AND profile = 'orchestrator';
CREATE INDEX IF NOT EXISTS job_orchestrator_worker_idx
ON tenure_job (lease_owner, state, profile) WHERE lease_owner IS NOT NULL AND profile = 'orchestrator';

CREATE TRIGGER orchestrator_enqueue INSTEAD OF INSERT ON orchestrator_tasks
BEGIN
    SELECT RAISE(ABORT, 'A task begins as pending, with no attempts made; its moves set worker_id, claimed_at, started_at, completed_at, last_error and next_retry_at. Nothing was enqueued.')
    WHERE coalesce(NEW.status, 'pending') <> 'pending' OR coalesce(NEW.attempts, 0) <> 0
        OR coalesce(NEW.worker_id, NEW.claimed_at, NEW.started_at, NEW.completed_at, NEW.last_error, NEW.next_retry_at) IS NOT NULL;
    INSERT INTO tenure_inbox (id, profile, queue, kind, payload, priority, max_attempts, key)
    VALUES (
        NEW.id, 'orchestrator', 'orchestrator', NEW.type, NEW.payload, NEW.priority, NEW.max_retries + 1, NEW.idempotency_key
    );
END;

-- SQLite's RETURNING shows what was given. RETURNING (SELECT id FROM orchestrator_tasks_inserted) shows what was made, or found under the key.
DROP VIEW IF EXISTS orchestrator_tasks_inserted;
CREATE VIEW orchestrator_tasks_inserted AS
SELECT j.id AS id, j.kind AS type, i.is_duplicate AS duplicate
FROM tenure_inserted AS i
JOIN tenure_job AS j ON j.id = i.id
WHERE i.profile = 'orchestrator';

-- Without these an UPDATE or DELETE … RETURNING would answer as if it had been done.
CREATE TRIGGER orchestrator_refuse_update INSTEAD OF UPDATE ON orchestrator_tasks
BEGIN
    SELECT RAISE(ABORT, 'A task is not changed by UPDATE: it could come from a worker that lost its lease. Nothing was changed. Claim, complete and fail tasks through App or the tenure command; tenure jobs cancel and tenure jobs revive are for operators.');
END;
CREATE TRIGGER orchestrator_refuse_delete INSTEAD OF DELETE ON orchestrator_tasks
BEGIN
    SELECT RAISE(ABORT, 'A task is not removed by DELETE: its worker would work for nothing, and no record of it would remain. Nothing was changed. Use tenure jobs cancel for one that is not done; tenure prune removes what ended long ago.');
END;

-- updated_at is refreshed after an UPDATE that has not moved it itself. Claims, heartbeats and completions do; this is for changes by hand.
DROP TRIGGER IF EXISTS update_tasks_updated_at;
CREATE TRIGGER update_tasks_updated_at AFTER UPDATE ON tenure_job
WHEN NEW.updated_at = OLD.updated_at AND NEW.profile = 'orchestrator'
BEGIN
    UPDATE tenure_job
    SET updated_at = max(OLD.updated_at + 1, CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)
    WHERE rowid = NEW.rowid;
END;

DROP VIEW IF EXISTS orchestrator_workers;
CREATE VIEW orchestrator_workers AS
SELECT
    w.id,
    w.hostname,
    datetime(w.started_at / 1000000, 'unixepoch') || '.' || substr('00' || (w.started_at / 1000 % 1000), -3) AS started_at,
    datetime(w.last_seen_at / 1000000, 'unixepoch') || '.' || substr('00' || (w.last_seen_at / 1000 % 1000), -3) AS last_heartbeat,
    w.concurrency AS pool_size,
    nullif(w.version, '') AS version,
    l.until IS NOT NULL AS is_leader,
    datetime(l.until / 1000000, 'unixepoch') || '.' || substr('00' || (l.until / 1000 % 1000), -3) AS leader_until
FROM tenure_worker AS w
LEFT JOIN tenure_lease AS l ON l.name = 'leader:orchestrator' AND l.owner = w.id
    AND l.until > CAST(strftime('%s', 'now') AS INTEGER) * 1000000
WHERE EXISTS (
    SELECT 1
    FROM json_each(w.queues) AS served
    JOIN tenure_queue AS q ON q.name = served.value AND q.profile = 'orchestrator'
);
CREATE TRIGGER orchestrator_refuse_beat INSTEAD OF UPDATE ON orchestrator_workers
BEGIN
    SELECT RAISE(ABORT, 'A worker is not changed by UPDATE on SQLite, where no function stands behind it. Nothing was changed. tenure worker beats and leads by itself; App.heartbeat does for a worker of your own.');
END;
CREATE TRIGGER orchestrator_refuse_worker INSTEAD OF INSERT ON orchestrator_workers
BEGIN
    SELECT RAISE(ABORT, 'A worker is not registered by INSERT on SQLite, where no function stands behind it. Nothing was changed. tenure worker registers by itself; App.heartbeat does for a worker of your own.');
END;
CREATE TRIGGER orchestrator_refuse_removal INSTEAD OF DELETE ON orchestrator_workers
BEGIN
    SELECT RAISE(ABORT, 'A worker is not removed by DELETE on SQLite, where no function stands behind it. Nothing was changed. The leader removes dead workers; App.workers.remove does by hand.');
END;

-- Heartbeat and start: what a worker says while it holds jobs.

-- name: heartbeat
-- Extend leases to now + lease, within the queue's bound; never shorter than they were, never for a lease that is lost.
-- `holds`: a JSON array of [id, token, progress, started]. A start is the same with a lease of 0, which extends nothing.
UPDATE tenure_job INDEXED BY sqlite_autoindex_tenure_job_1
SET lease_until = max(lease_until, :now + CAST(1000000 * (
        SELECT min(coalesce(:lease_seconds, q.lease_seconds), q.lease_max_seconds)
        FROM tenure_queue AS q
        WHERE q.name = tenure_job.queue
    ) AS INTEGER)),
    state = CASE WHEN hold.value ->> 3 THEN 'running' ELSE state END,
    started_at = CASE WHEN hold.value ->> 3 THEN coalesce(started_at, :now) ELSE started_at END,
    progress = coalesce(hold.value ->> 2, progress),
    is_beside = 0,
    updated_at = :now
FROM json_each(:holds) AS hold
WHERE tenure_job.id = hold.value ->> 0
    AND token = hold.value ->> 1
    AND state IN ('leased', 'running')
    AND lease_until > :now;

-- name: held
-- Which of these are held: [id, token, whether it is asked to stop, state, whether its deadline has passed] each, as one JSON array.
SELECT json_group_array(json_array(
    job.id, job.token, job.cancel_requested_at IS NOT NULL, job.state,
    job.step_token IS NOT NULL
        AND EXISTS (SELECT 1 FROM tenure_step WHERE job_id = job.id AND key = '$deadline' AND due_at <= :now)
        AND NOT EXISTS (SELECT 1 FROM tenure_step WHERE job_id = job.id AND key = '$undoing')
))
FROM json_each(:holds) AS hold
CROSS JOIN tenure_job AS job INDEXED BY sqlite_autoindex_tenure_job_1 ON job.id = hold.value ->> 0
WHERE job.token = hold.value ->> 1
    AND job.state IN ('leased', 'running')
    AND job.lease_until > :now;

-- name: gate
-- The closed gate, if any, that keeps the row of a worker of these queues from being written.
SELECT min(g.name)
FROM tenure_gate AS g
WHERE g.is_open = 0
    AND (
        g.name = 'heartbeat'
        OR g.name IN (
            SELECT q.profile || '.heartbeat'
            FROM tenure_queue AS q
            WHERE q.name IN (SELECT value FROM json_each(:queues))
        )
    );

-- name: worker
-- A worker's own row, seen now.
INSERT INTO tenure_worker (
    id, hostname, pid, queues, kinds, concurrency, version, executor_kind, status, ticks, current_job_id, info, started_at,
    last_seen_at
)
VALUES (
    :id, :hostname, :pid, :queues, :kinds, :concurrency, :version, :executor_kind, :status, 1, :current_job_id, :info, :now, :now
)
ON CONFLICT (id) DO UPDATE
SET hostname = excluded.hostname,
    pid = excluded.pid,
    queues = excluded.queues,
    kinds = excluded.kinds,
    concurrency = excluded.concurrency,
    version = excluded.version,
    executor_kind = excluded.executor_kind,
    status = excluded.status,
    ticks = ticks + 1,
    current_job_id = excluded.current_job_id,
    info = excluded.info,
    last_seen_at = excluded.last_seen_at;

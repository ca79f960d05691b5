-- Settle: how attempts end. A success is one statement for a batch; every other end is read here, decided by model.state.end_rule, and
-- carried out here.

-- name: complete
-- End attempts well: a JSON array of [id, token, result, result_summary, artifacts_path].
-- Invariant: only the grant that holds the lease may write. `token` rises in a grant and nowhere else, so a late worker matches no
-- row; a lease that ran out is lost even if the job was not taken back yet. A job that was asked to stop never succeeds.
-- INDEXED BY keeps the array outside and the job inside: the other way round it would be read once for every held job.
UPDATE tenure_job INDEXED BY sqlite_autoindex_tenure_job_1
SET state = 'succeeded',
    result = done.value ->> 2,
    result_summary = done.value ->> 3,
    artifacts_path = coalesce(done.value ->> 4, artifacts_path),
    suspicion = 0,
    is_beside = 0,
    finished_at = :now,
    updated_at = :now,
    started_at = coalesce(started_at, claimed_at),
    lease_owner = NULL,
    lease_until = NULL,
    dedup_slot = CASE WHEN substr(dedup_slot, 1, 1) = 'a' THEN NULL ELSE dedup_slot END
FROM json_each(:done) AS done
WHERE tenure_job.id = done.value ->> 0
    AND token = done.value ->> 1
    AND state IN ('leased', 'running')
    AND lease_until > :now
    AND cancel_requested_at IS NULL;

-- name: followed
-- Of the jobs that `complete` is about to end, those whose end has consequences: [id, workflow_id, step_token, limiter, claimed_at,
-- group_id, whether its queue keeps events] each, as one JSON array. `complete` has no RETURNING for it: sqlite3 gives up Python's lock at
-- every row, and with busy handlers beside it the write lock of the file would be held while each row waits to get that back.
WITH telling(name) AS MATERIALIZED (
    SELECT name FROM tenure_queue INDEXED BY queue_events_idx WHERE events = 1 OR agent_events <> 'none'
)
SELECT json_group_array(json_array(j.id, j.workflow_id, j.step_token, j.limiter, j.claimed_at, j.group_id, j.queue IN telling))
FROM json_each(:done) AS done
CROSS JOIN tenure_job AS j INDEXED BY sqlite_autoindex_tenure_job_1 ON j.id = done.value ->> 0
WHERE (coalesce(j.workflow_id, j.step_token, j.limiter, j.group_id) IS NOT NULL OR j.queue IN telling)
    AND j.token = done.value ->> 1
    AND j.state IN ('leased', 'running')
    AND j.lease_until > :now
    AND j.cancel_requested_at IS NULL;

-- name: held
-- A job that is held under this token, with all that decides about its end. A lease that ran out is lost, unless it is being taken back.
SELECT j.attempt, j.max_attempts, j.crashes, j.suspicion, j.is_beside, j.run_at, j.lease_owner, j.lease_until, j.claimed_at,
    j.cancel_requested_at IS NOT NULL, j.last_error, j.failure_class, j.dedup_slot, j.queue, j.workflow_id, j.backoff,
    j.wake_token, j.step_token, j.group_id, j.limiter, q.backoff_shape, q.backoff_base_seconds, q.backoff_power, q.backoff_factor, q.backoff_cap_seconds, q.backoff_jitter
FROM tenure_job AS j
JOIN tenure_queue AS q ON q.name = j.queue
WHERE j.id = :job_id
    AND j.token = :token
    AND j.state IN ('leased', 'running')
    AND (:is_expiry OR j.lease_until > :now);

-- name: end
-- Carry out what a rule says about a job that is held.
UPDATE tenure_job
SET state = :state,
    attempt = :attempt,
    crashes = :crashes,
    suspicion = :suspicion,
    is_beside = 0,
    run_at = :run_at,
    place_at = :place_at,
    cancel_requested_at = CASE WHEN NOT :forgets_cancel THEN cancel_requested_at END,
    is_due = :is_due,
    waiting_for = :waiting_for,
    last_error = :last_error,
    failure_class = :job_class,
    dedup_slot = :dedup_slot,
    finished_at = :finished_at,
    lease_owner = NULL,
    lease_until = NULL,
    updated_at = :now
WHERE id = :job_id AND token = :token;

-- name: attempt
-- How an attempt ended that was no success.
INSERT INTO tenure_attempt (
    job_id, token, attempt, worker, claimed_at, ended_at, outcome, failure_class, error, fingerprint, run_at
)
VALUES (
    :job_id, :token, :number, :worker, :claimed_at, :now, :outcome, :failure_class, :error, :fingerprint, :next_run_at
);

-- name: bury
-- The dead letter, in the same transaction as the death. One row per death: a revived job may die again, under another token.
INSERT INTO tenure_dead_letter (
    id, job_id, token, queue, profile, kind, state, payload, forbidden_keys, source_ref, target_ref, payload_ref,
    idempotency_key, actor, run_id, workflow_id, attempts, crashes, failure_class, final_error, fingerprint, moved_at, moved_by
)
SELECT lower(
        hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-'
        || substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))
    ),
    id, token, queue, profile, kind, state, payload, forbidden_keys, source_ref, target_ref, payload_ref,
    idempotency_key, actor, run_id, workflow_id, attempt, crashes, :failure_class, :final_error, :fingerprint, :now, :moved_by
FROM tenure_job
WHERE id = :job_id AND token = :token
ON CONFLICT (job_id, token) DO NOTHING;

-- name: crashed
-- Jobs of the same kind as this one that crashed so many times each, since a moment and since the gate of the kind was last opened; none
-- if it is closed. Crashes are those of class `crash`; that they are the jobs' own, `crashes` says.
SELECT j.kind, j.id
FROM tenure_job AS this
CROSS JOIN tenure_job AS j INDEXED BY job_crashed_idx ON j.kind = this.kind
WHERE this.id = :job_id
    AND j.crashes >= 2
    AND j.updated_at > :since
    AND NOT EXISTS (SELECT 1 FROM tenure_gate AS g WHERE g.name = 'kind:' || this.kind AND g.is_open = 0)
    AND (
        SELECT count(*)
        FROM tenure_attempt AS a
        WHERE a.job_id = j.id
            AND a.failure_class = 'crash'
            AND a.ended_at > max(:since, coalesce((SELECT g.updated_at FROM tenure_gate AS g WHERE g.name = 'kind:' || this.kind), 0))
    ) >= :crashes
ORDER BY j.updated_at DESC
LIMIT :jobs;

-- name: on_record
-- What is on record for this grant, so that an outcome sent twice is answered as it was the first time.
-- A success, a suspend and a release without a class leave no attempt row: the job itself says so, as long as its token is the same.
SELECT j.state,
    j.token = :token AS is_newest,
    j.run_at,
    a.outcome,
    a.run_at
FROM tenure_job AS j
LEFT JOIN tenure_attempt AS a ON a.job_id = j.id AND a.token = :token
WHERE j.id = :job_id;

-- name: expired
-- Held jobs whose lease has run out, the longest ago first.
SELECT id, token, lease_owner, lease_until
FROM tenure_job INDEXED BY job_lease_idx
WHERE state IN ('leased', 'running') AND lease_until <= :now
ORDER BY lease_until
LIMIT :limit;

-- name: held_by
-- What one worker holds.
SELECT id, token, lease_owner, lease_until
FROM tenure_job INDEXED BY job_lease_idx
WHERE state IN ('leased', 'running') AND lease_owner = :worker
ORDER BY lease_until;

-- name: holders
-- How many jobs each of these workers (a JSON array) holds, run out or not, and when it was last seen.
SELECT held.lease_owner, held.jobs, w.last_seen_at
FROM (
    SELECT lease_owner, count(*) AS jobs
    FROM tenure_job INDEXED BY job_lease_idx
    WHERE state IN ('leased', 'running') AND lease_owner IN (SELECT value FROM json_each(:workers))
    GROUP BY lease_owner
) AS held
LEFT JOIN tenure_worker AS w ON w.id = held.lease_owner;

-- name: mark_beside
-- What a worker still holds after one of its leases ran out counts as held beside others whenever its own lease runs out. Of a
-- worker that is seen alive only those leases count that have run out too.
UPDATE tenure_job INDEXED BY job_lease_idx
SET is_beside = 1
WHERE state IN ('leased', 'running')
    AND lease_owner = :worker
    AND (:is_vanished OR lease_until <= :now)
    AND is_beside = 0;

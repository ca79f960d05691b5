-- Events and effects: what handlers write beside their outcome.

-- name: held
-- Whether this grant still holds the job.
SELECT queue
FROM tenure_job
WHERE id = :job_id AND token = :token AND state IN ('leased', 'running') AND lease_until > :now;

-- name: event_append
-- One event.
INSERT INTO tenure_event (at, kind, job_id, queue, data)
VALUES (:now, :kind, :job_id, (SELECT queue FROM tenure_job WHERE id = :job_id), :data);

-- name: event_lifecycle
-- What happened to jobs, for those queues that ask for it. Runs after the move, so it tells where the job stands now.
INSERT INTO tenure_event (at, kind, job_id, queue, data)
SELECT :now,
    :kind,
    j.id,
    j.queue,
    json_object('state', j.state, 'attempt', j.attempt, 'token', j.token, 'kind', j.kind, 'worker', j.lease_owner,
        'class', CASE WHEN :kind IN ('retried', 'reclaimed', 'failed', 'dead', 'cancelled') THEN j.failure_class END)
FROM json_each(:ids) AS moved
CROSS JOIN tenure_job AS j ON j.id = moved.value
CROSS JOIN tenure_queue AS q ON q.name = j.queue AND q.events = 1
ORDER BY moved.key;

-- name: events_wanted
-- Whether any queue keeps lifecycle events, and whether any keeps agent events. Read from an index that is empty when none does.
SELECT max(events), max(agent_events <> 'none')
FROM tenure_queue INDEXED BY queue_events_idx
WHERE events = 1 OR agent_events <> 'none';

-- name: effect
-- The effect at one place.
SELECT job_id, step, name, state, token, key, args, result, error, intended_at, updated_at
FROM tenure_effect
WHERE job_id = ? AND step = ? AND name = ?;

-- name: effect_record
-- A step of an effect. Its place is (job, step, name); the first record fixes args and key, later ones move the state.
-- Recording `intended` where a row stands changes nothing: the caller reads how far an earlier attempt got.
INSERT INTO tenure_effect (job_id, step, name, state, token, key, args, result, error, intended_at, updated_at)
VALUES (
    :job_id, :step, :name, :state, :token, coalesce(:key, :job_id || ':' || :step || ':' || :name),
    :args, :result, :error, :now, :now
)
ON CONFLICT (job_id, step, name) DO UPDATE
SET state = excluded.state,
    token = excluded.token,
    result = coalesce(excluded.result, result),
    error = coalesce(excluded.error, error),
    updated_at = excluded.updated_at
WHERE excluded.state <> 'intended';

-- name: effect_resolve
-- What a person found out about an effect. The row is taken as it stands; a result that says nothing goes.
UPDATE tenure_effect
SET state = :state,
    result = :result,
    error = :error,
    updated_at = :now
WHERE job_id = :job_id AND step = :step AND name = :name AND state <> 'confirmed';

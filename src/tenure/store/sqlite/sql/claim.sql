-- Claim: due jobs granted under a lease. One row comes back from each statement that reads jobs, as JSON: sqlite3 gives up Python's
-- lock at every row, and a busy event loop would let it wait for each.

-- name: look
-- The asked queues (a JSON array) in the order given, with the terms of their leases and the gates that stand before them; and the
-- earliest end of a lease and the earliest time at which a job comes due. A queue that does not exist comes back with a NULL name.
SELECT asked.value AS asked,
    q.name,
    q.paused_at IS NOT NULL AS is_paused,
    q.start_on_claim,
    CAST(1000000 * q.lease_seconds AS INTEGER) AS lease,
    CAST(1000000 * q.lease_max_seconds AS INTEGER) AS lease_max,
    q.concurrency,
    q.concurrency_per_key,
    (
        SELECT min(g.name)
        FROM tenure_gate AS g
        WHERE g.is_open = 0 AND g.name IN ('master', 'worker', 'worker:' || :worker)
    ) AS closed_gate,
    (
        SELECT min(g.name)
        FROM tenure_gate AS g
        WHERE g.is_open = 0 AND g.name IN (q.profile || '.master', q.profile || '.worker', 'queue:' || q.name)
    ) AS closed_queue_gate,
    (SELECT json_group_array(substr(g.name, 6)) FROM tenure_gate AS g WHERE g.is_open = 0 AND g.name GLOB 'kind:*') AS closed_kinds
FROM json_each(:queues) AS asked
LEFT JOIN tenure_queue AS q ON q.name = asked.value
ORDER BY asked.key;

-- name: first
-- The earliest end of a lease, and the earliest time at which a job comes due, both from the head of an index.
SELECT (SELECT min(lease_until) FROM tenure_job INDEXED BY job_lease_idx WHERE state IN ('leased', 'running')),
    (SELECT min(run_at) FROM tenure_job INDEXED BY job_due_idx WHERE is_due = 0 AND state IN ('queued', 'waiting'));

-- name: next_due
-- When the next job of these queues (a JSON array) comes due, up to a moment; NULL if none does, or a hundred jobs of other queues come
-- due before it.
SELECT min(run_at)
FROM (
    SELECT run_at, queue
    FROM tenure_job INDEXED BY job_due_idx
    WHERE is_due = 0 AND state IN ('queued', 'waiting') AND run_at > :now AND run_at <= :until
    ORDER BY run_at
    LIMIT 100
)
WHERE queue IN (SELECT value FROM json_each(:queues));

-- name: waiting
-- Which of the jobs that `promote` is about to take were suspended, and whether they have steps.
SELECT id, step_token IS NOT NULL
FROM (
    SELECT id, state, step_token
    FROM tenure_job INDEXED BY job_due_idx
    WHERE is_due = 0 AND state IN ('queued', 'waiting') AND run_at <= :now
    ORDER BY run_at
    LIMIT :limit
)
WHERE state = 'waiting';

-- name: promote
-- Jobs whose time has come enter the claim's index, a bounded number at a time; a suspended job wakes by its time, with the place that
-- it had before.
UPDATE tenure_job
SET is_due = 1,
    state = 'queued',
    run_at = coalesce(place_at, run_at),
    place_at = NULL,
    waiting_for = NULL,
    updated_at = :now
WHERE rowid IN (
    SELECT rowid
    FROM tenure_job INDEXED BY job_due_idx
    WHERE is_due = 0 AND state IN ('queued', 'waiting') AND run_at <= :now
    ORDER BY run_at
    LIMIT :limit
)
RETURNING id, queue;

-- name: pick
-- The next due jobs of one queue and limiter (NULL: without one) in claim order, after a place in it: [rank, run_at, id, rowid,
-- concurrency_key, limiter] each. `kinds`, `closed_kinds`, `affinity` and `full` (concurrency keys that are used up) are JSON arrays, NULL for no
-- filter.
SELECT json_group_array(json_array(rank, run_at, id, job, concurrency_key, limiter))
FROM (
    SELECT rank, run_at, id, rowid AS job, concurrency_key, limiter
    FROM tenure_job INDEXED BY job_claim_idx
    WHERE queue = :queue AND limiter IS :limiter AND state = 'queued' AND is_due = 1 AND suspicion < 2
        AND (rank, run_at, id) > (:rank, :run_at, :id)
        AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
        AND (:closed_kinds IS NULL OR kind NOT IN (SELECT value FROM json_each(:closed_kinds)))
        AND (
            :affinity IS NULL
            OR affinity_key IN (SELECT value FROM json_each(:affinity))
            OR (affinity_key IS NULL AND :affinity_none)
        )
        AND (:full IS NULL OR concurrency_key IS NULL OR concurrency_key NOT IN (SELECT value FROM json_each(:full)))
    ORDER BY rank, run_at, id
    LIMIT :limit
);

-- name: pick_suspect
-- The same for jobs that must run alone, whatever their limiter: they are few.
SELECT json_group_array(json_array(rank, run_at, id, job, concurrency_key, limiter))
FROM (
    SELECT rank, run_at, id, rowid AS job, concurrency_key, limiter
    FROM tenure_job INDEXED BY job_suspect_idx
    WHERE queue = :queue AND state = 'queued' AND is_due = 1 AND suspicion >= 2
        AND (rank, run_at, id) > (:rank, :run_at, :id)
        AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
        AND (:closed_kinds IS NULL OR kind NOT IN (SELECT value FROM json_each(:closed_kinds)))
        AND (
            :affinity IS NULL
            OR affinity_key IN (SELECT value FROM json_each(:affinity))
            OR (affinity_key IS NULL AND :affinity_none)
        )
        AND (:full IS NULL OR concurrency_key IS NULL OR concurrency_key NOT IN (SELECT value FROM json_each(:full)))
    ORDER BY rank, run_at, id
    LIMIT :limit
);

-- name: needs
-- Whether a job that must run alone is due, and this worker holds none; and whether a job with a limiter is due in these queues (a JSON
-- array). Mostly a look at an empty index, and one at the end of each queue's list.
SELECT CASE
    WHEN EXISTS (
        SELECT 1 FROM tenure_job INDEXED BY job_suspect_idx WHERE state = 'queued' AND is_due = 1 AND suspicion >= 2
    ) THEN NOT EXISTS (
        SELECT 1
        FROM tenure_job INDEXED BY job_lease_idx
        WHERE state IN ('leased', 'running') AND lease_owner = :worker AND suspicion >= 2
    )
    ELSE 0
END,
EXISTS (
    SELECT 1
    FROM json_each(:queues) AS asked
    CROSS JOIN tenure_job AS j INDEXED BY job_claim_idx ON j.queue = asked.value
    WHERE j.state = 'queued' AND j.is_due = 1 AND j.suspicion < 2 AND j.limiter > ''
);

-- name: limited
-- The limiters of the due jobs in these queues (a JSON array), by queue: [limiter, rank, run_at, id] of the first job of each. Each is found by
-- one look behind the one before.
WITH RECURSIVE found (queue, head) AS (
    SELECT asked.value, (
        SELECT json_array(j.limiter, j.rank, j.run_at, j.id)
        FROM tenure_job AS j INDEXED BY job_claim_idx
        WHERE j.queue = asked.value AND j.state = 'queued' AND j.is_due = 1 AND j.suspicion < 2 AND j.limiter > ''
        ORDER BY j.limiter, j.rank, j.run_at, j.id
        LIMIT 1
    )
    FROM json_each(:queues) AS asked
    UNION ALL
    SELECT f.queue, (
        SELECT json_array(j.limiter, j.rank, j.run_at, j.id)
        FROM tenure_job AS j INDEXED BY job_claim_idx
        WHERE j.queue = f.queue AND j.state = 'queued' AND j.is_due = 1 AND j.suspicion < 2 AND j.limiter > f.head ->> 0
        ORDER BY j.limiter, j.rank, j.run_at, j.id
        LIMIT 1
    )
    FROM found AS f
    WHERE f.head IS NOT NULL
)
SELECT queue, head FROM found WHERE head IS NOT NULL;

-- name: held_by_key
-- How many jobs of a queue are held now, by concurrency key. A lease that was not taken back yet still counts.
SELECT concurrency_key, count(*)
FROM tenure_job INDEXED BY job_lease_idx
WHERE state IN ('leased', 'running') AND queue = :queue
GROUP BY concurrency_key;

-- name: grant
-- Grant picked jobs, given as a JSON array of rowids. One writer at a time: nothing has changed since the pick.
-- Invariant: `token` rises here and nowhere else, so a worker that held the job before matches no row any more.
-- `attempt` is counted now, not at the end: a job that kills its worker still spends its budget.
UPDATE tenure_job
SET state = :state,
    token = token + 1,
    attempt = attempt + 1,
    lease_owner = :worker,
    lease_until = :lease_until,
    claimed_at = :now,
    started_at = coalesce(started_at, :started_at),
    is_beside = 0,
    updated_at = :now
WHERE rowid IN (SELECT value FROM json_each(:rowids))
    AND state = 'queued';

-- name: again
-- Jobs that this worker holds without knowing it, because the reply to an earlier claim was lost: their places and rowids.
-- The token stays: it is the same grant, handed over once more.
UPDATE tenure_job
SET lease_until = max(lease_until, :now + min(
        coalesce(:lease, (SELECT CAST(1000000 * lease_seconds AS INTEGER) FROM tenure_queue WHERE name = tenure_job.queue)),
        (SELECT CAST(1000000 * lease_max_seconds AS INTEGER) FROM tenure_queue WHERE name = tenure_job.queue)
    )),
    updated_at = :now
WHERE rowid IN (
    SELECT rowid
    FROM tenure_job INDEXED BY job_lease_idx
    WHERE state IN ('leased', 'running')
        AND lease_owner = :worker
        AND lease_until > :now
        AND id NOT IN (SELECT value FROM json_each(:held))
    ORDER BY rank, run_at, id
    LIMIT :limit
)
RETURNING rank, run_at, id, rowid;

-- name: granted
-- What the grants of these jobs (a JSON array of rowids) carry, in the order of the array. The last but one element is an object of the
-- columns that most jobs leave empty, or null; the last says whether the job has steps.
SELECT json_group_array(json_array(
    j.id, queue, kind, token, attempt, max_attempts, payload, lease_until, lease_owner, priority, crashes, state, suspicion,
    CASE WHEN coalesce(
        idempotency_key, progress, backoff, affinity_key, concurrency_key, limiter, source_ref, target_ref, payload_ref, actor,
        created_by_user_id, requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, artifacts_path
    ) IS NOT NULL THEN json_object(
        'key', idempotency_key, 'progress', progress, 'backoff', backoff, 'affinity_key', affinity_key,
        'concurrency_key', concurrency_key, 'limiter', limiter, 'source_ref', source_ref, 'target_ref', target_ref, 'payload_ref', payload_ref,
        'actor', actor, 'created_by_user_id', created_by_user_id, 'requested_by_user_id', requested_by_user_id,
        'tenant', tenant, 'workflow_id', workflow_id, 'parent_id', parent_id, 'run_id', run_id, 'trace', trace,
        'artifacts_path', artifacts_path
    ) END,
    step_token
))
FROM json_each(:rowids) AS asked
CROSS JOIN tenure_job AS j ON j.rowid = asked.value;

-- Enqueue: rows in state `queued`, on the terms of their queue.

-- name: terms
-- On what terms each of these queues (a JSON array) takes jobs. The slot's beginning, to which kind and key are added, is NULL
-- where keys don't deduplicate. CROSS JOIN, because IN would build a temporary table of the names first.
SELECT q.name,
    q.profile,
    q.priority_order,
    q.priority_default,
    q.aging_seconds,
    q.max_attempts,
    CASE WHEN q.key_scope <> 'none' THEN substr(q.key_scope, 1, 1) || '|' || q.profile || char(31) END AS slot,
    q.key_space,
    q.key_required,
    q.key_conflict,
    CASE q.key_scope WHEN 'window' THEN CAST(1000000 * q.key_window_seconds AS INTEGER) END AS window,
    q.forbidden_keys,
    (
        SELECT min(g.name)
        FROM tenure_gate AS g
        WHERE g.is_open = 0 AND g.name IN ('master', q.profile || '.master', 'queue:' || q.name)
    ) AS closed_gate,
    p.settings ->> 'priority_min' AS priority_min,
    p.settings ->> 'priority_max' AS priority_max,
    q.events
FROM json_each(:queues) AS asked
CROSS JOIN tenure_queue AS q ON q.name = asked.value
LEFT JOIN tenure_profile AS p ON p.name = q.profile;

-- name: insert
-- Jobs as a JSON array of arrays; element 14 is an object of the rarely set columns, or null. A row that is missing afterwards had its
-- id or its slot taken: the unique indexes decide, never a look beforehand.
-- LIMIT -1 keeps the subquery apart, so that element 14 is taken out once and not for each of its columns.
INSERT INTO tenure_job (
    id, payload, kind, queue, profile, priority, rank, max_attempts, run_at, is_due, created_at, updated_at,
    idempotency_key, dedup_slot, payload_hash, forbidden_keys,
    backoff, affinity_key, concurrency_key, limiter, source_ref, target_ref, payload_ref, actor, created_by_user_id,
    requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, artifacts_path, group_id
)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7, value ->> 8, value ->> 9,
    :now, :now, value ->> 10, value ->> 11, value ->> 12, value ->> 13,
    extras ->> 'backoff', extras ->> 'affinity_key', extras ->> 'concurrency_key', extras ->> 'limiter', extras ->> 'source_ref',
    extras ->> 'target_ref', extras ->> 'payload_ref', extras ->> 'actor', extras ->> 'created_by_user_id',
    extras ->> 'requested_by_user_id', extras ->> 'tenant', extras ->> 'workflow_id', extras ->> 'parent_id', extras ->> 'run_id',
    extras ->> 'trace', extras ->> 'artifacts_path', extras ->> 'group_id'
FROM (SELECT value, value -> 14 AS extras FROM json_each(:jobs) LIMIT -1)
WHERE true
ON CONFLICT DO NOTHING;

-- name: found
-- Which of these jobs (a JSON array of ids) are there.
SELECT json_group_array(id)
FROM tenure_job INDEXED BY sqlite_autoindex_tenure_job_1
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: by_id
-- What the job that has an id is. A cleaned one has no payload; an edited one has another than it was enqueued with.
SELECT queue, kind, payload, EXISTS (SELECT 1 FROM tenure_audit AS a WHERE a.subject = j.id AND a.act = 'edit')
FROM tenure_job AS j
WHERE id = ?;

-- name: holder
-- The job that has the slot, since when, and for which payload. A job that came in by plain SQL has no hash; a cleaned one has no
-- payload.
SELECT id, created_at, payload_hash, payload
FROM tenure_job
WHERE dedup_slot = ?;

-- name: free_slot
-- The window of the job that had the slot is over.
UPDATE tenure_job SET dedup_slot = NULL WHERE id = ?;

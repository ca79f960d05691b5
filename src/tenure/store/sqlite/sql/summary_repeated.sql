-- summary_repeated: keys of one kind that several jobs carry, among those still to do and those that ended within the window.
SELECT queue, kind, idempotency_key, count(*) AS jobs, sum(is_active), max(id)
FROM (
    SELECT id, queue, kind, idempotency_key, 1 AS is_active
    FROM tenure_job INDEXED BY job_claim_idx
    WHERE state = 'queued' AND is_due = 1
    UNION ALL
    SELECT id, queue, kind, idempotency_key, 1
    FROM tenure_job INDEXED BY job_due_idx
    WHERE is_due = 0 AND state IN ('queued', 'waiting')
    UNION ALL
    SELECT id, queue, kind, idempotency_key, 1
    FROM tenure_job INDEXED BY job_lease_idx
    WHERE state IN ('leased', 'running')
    UNION ALL
    SELECT id, queue, kind, idempotency_key, 0
    FROM tenure_job INDEXED BY job_finished_idx
    WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND finished_at > :since
)
WHERE idempotency_key IS NOT NULL
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
GROUP BY queue, kind, idempotency_key
HAVING count(*) > 1
ORDER BY jobs DESC, queue, kind, idempotency_key
LIMIT :limit;

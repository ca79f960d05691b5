-- summary_backlog: what waits and what is held in each queue. Three indexes hold every job that is still to do, so the ended ones cost nothing.
SELECT queue,
    coalesce(sum(state = 'queued' AND run_at <= :now), 0) AS due,
    coalesce(sum(state = 'queued' AND run_at > :now), 0) AS delayed,
    coalesce(sum(state = 'queued' AND attempt > 0 AND failure_class IS NOT NULL), 0) AS retrying,
    coalesce(sum(state IN ('leased', 'running')), 0) AS held,
    coalesce(sum(state = 'waiting'), 0) AS waiting,
    min(CASE WHEN state = 'queued' AND run_at <= :now THEN run_at END) AS oldest_due_at
FROM (
    SELECT queue, state, run_at, attempt, failure_class
    FROM tenure_job INDEXED BY job_claim_idx
    WHERE state = 'queued' AND is_due = 1
    UNION ALL
    SELECT queue, state, run_at, attempt, failure_class
    FROM tenure_job INDEXED BY job_due_idx
    WHERE is_due = 0 AND state IN ('queued', 'waiting')
    UNION ALL
    SELECT queue, state, run_at, attempt, failure_class
    FROM tenure_job INDEXED BY job_lease_idx
    WHERE state IN ('leased', 'running')
)
WHERE (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
GROUP BY queue
ORDER BY queue;

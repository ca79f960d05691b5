-- count: jobs by queue, kind and state.
SELECT queue, kind, state, count(*), min(created_at)
FROM tenure_job
WHERE (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
GROUP BY queue, kind, state
ORDER BY queue, kind, state;

-- metrics: counted minutes, newest first.
SELECT minute, queue, profile, created, completed, failed,
    latency_seconds / nullif(completed, 0),
    CAST(failed AS REAL) / nullif(completed + failed, 0),
    heartbeat_delay_seconds
FROM tenure_metric
WHERE minute >= :since AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
ORDER BY minute DESC, queue
LIMIT :limit;

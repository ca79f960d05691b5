-- events: events above a number, in order.
SELECT seq, at, kind, job_id, queue, data
FROM tenure_event
WHERE seq > :after
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
ORDER BY seq
LIMIT :limit;

-- events_of_job: the same for one job, by its index.
SELECT seq, at, kind, job_id, queue, data
FROM tenure_event INDEXED BY event_job_idx
WHERE job_id = :job_id
    AND seq > :after
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
ORDER BY seq
LIMIT :limit;

-- summary_stuck: held jobs whose lease ran out and that nobody has taken back, the longest ago first; with their number.
SELECT count(*) OVER (), id, queue, kind, state, lease_owner, attempt, lease_until
FROM tenure_job INDEXED BY job_lease_idx
WHERE state IN ('leased', 'running')
    AND lease_until <= :now
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
ORDER BY lease_until, id
LIMIT :limit;

-- effects: effects of a job, or of all in some states, by job and place.
SELECT job_id, step, name, state, token, key, args, result, error, intended_at, updated_at
FROM tenure_effect
WHERE (:job_id IS NULL OR job_id = :job_id)
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    AND (:after_job IS NULL OR (job_id, step, name) > (:after_job, :after_step, :after_name))
ORDER BY job_id, step, name
LIMIT :limit;

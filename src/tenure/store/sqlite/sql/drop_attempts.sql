-- drop_attempts: the attempts of a queue's jobs.
DELETE FROM tenure_attempt WHERE job_id IN (SELECT id FROM tenure_job WHERE queue = :name);

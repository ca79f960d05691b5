-- drop_dead_letters: the dead letters of a queue's jobs.
DELETE FROM tenure_dead_letter WHERE job_id IN (SELECT id FROM tenure_job WHERE queue = :name);

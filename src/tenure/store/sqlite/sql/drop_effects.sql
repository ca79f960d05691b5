-- drop_effects: the effects of a queue's jobs.
DELETE FROM tenure_effect WHERE job_id IN (SELECT id FROM tenure_job WHERE queue = :name);

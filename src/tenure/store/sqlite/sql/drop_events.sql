-- drop_events: the events of a queue's jobs.
DELETE FROM tenure_event WHERE job_id IN (SELECT id FROM tenure_job WHERE queue = :name);

-- drop_jobs: all jobs of a queue.
DELETE FROM tenure_job WHERE queue = :name;

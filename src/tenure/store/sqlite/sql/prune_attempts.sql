-- prune_attempts: the attempts of jobs that go.
DELETE FROM tenure_attempt WHERE job_id IN (SELECT value FROM json_each(:ids));

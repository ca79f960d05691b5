-- prune_jobs: the jobs that go.
DELETE FROM tenure_job WHERE id IN (SELECT value FROM json_each(:ids));

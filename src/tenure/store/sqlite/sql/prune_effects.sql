-- prune_effects: the effects of jobs that go.
DELETE FROM tenure_effect WHERE job_id IN (SELECT value FROM json_each(:ids));

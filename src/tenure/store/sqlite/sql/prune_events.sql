-- prune_events: the events of jobs that go.
DELETE FROM tenure_event WHERE job_id IN (SELECT value FROM json_each(:ids));

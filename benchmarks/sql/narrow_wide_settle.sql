UPDATE bare_job
SET state = 'succeeded',
    finished_at = :now,
    updated_at = :now,
    lease_owner = NULL,
    lease_until = NULL
WHERE rowid IN (SELECT value FROM json_each(:jobs))
    AND token = 1
    AND +state = 'running'
    AND +lease_until > :now;

UPDATE bare_job
SET state = 'running',
    token = token + 1,
    attempt = attempt + 1,
    lease_owner = 'host-12345-abcdef0123456789',
    lease_until = :now + 60000000,
    claimed_at = :now,
    started_at = :now,
    updated_at = :now
WHERE rowid IN (SELECT value FROM json_each(:jobs));

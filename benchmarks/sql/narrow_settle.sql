UPDATE bare_job
SET state = 'succeeded',
    token = token + 1,
    attempt = attempt + 1,
    claimed_at = :now,
    started_at = :now,
    finished_at = :now,
    updated_at = :now
WHERE rowid IN (
    SELECT job FROM bare_held WHERE job IN (SELECT value FROM json_each(:jobs)) AND token = 1 AND lease_until > :now
);

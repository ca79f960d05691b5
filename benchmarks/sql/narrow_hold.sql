INSERT INTO bare_held (job, token, owner, lease_until, claimed_at)
SELECT value, 1, 7, :now + 60000000, :now FROM json_each(:jobs);

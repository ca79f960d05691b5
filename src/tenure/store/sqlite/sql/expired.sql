-- expired: held jobs whose lease has run out, the longest ago first.
SELECT id, token
FROM tenure_job INDEXED BY job_lease_idx
WHERE state IN ('leased', 'running') AND lease_until <= :now
ORDER BY lease_until
LIMIT :limit;

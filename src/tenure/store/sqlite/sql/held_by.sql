-- held_by: what one worker holds.
SELECT id, token
FROM tenure_job INDEXED BY job_lease_idx
WHERE state IN ('leased', 'running') AND lease_owner = :worker
ORDER BY lease_until;

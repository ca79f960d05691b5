UPDATE bare_job
SET state = 'succeeded',
    result = ?3,
    finished_at = ?4,
    updated_at = ?4,
    lease_owner = NULL,
    lease_until = NULL
WHERE id = ?1
    AND token = ?2
    AND state = 'running';

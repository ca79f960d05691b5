UPDATE bare_job
SET state = 'running',
    token = token + 1,
    attempt = attempt + 1,
    lease_owner = ?3,
    lease_until = ?4 + 60000000,
    claimed_at = ?4,
    started_at = ?4,
    updated_at = ?4
WHERE id IN (
    SELECT id
    FROM bare_job
    WHERE queue = ?1
        AND state = 'queued'
        AND run_at <= ?4
    ORDER BY rank, run_at, id
    LIMIT ?2
)
RETURNING id, token, payload;

WITH next AS MATERIALIZED (
    SELECT id
    FROM bare.job
    WHERE queue = $1
        AND state = 'queued'
        AND run_at <= now()
    ORDER BY rank, run_at, id
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
UPDATE bare.job AS job
SET state = 'running',
    token = job.token + 1,
    attempt = job.attempt + 1,
    lease_owner = $3,
    lease_until = now() + interval '60 seconds',
    claimed_at = now(),
    started_at = now(),
    updated_at = now()
FROM next
WHERE job.id = next.id
RETURNING job.id, job.token, job.payload;

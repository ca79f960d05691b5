-- The owner stands for the state: a condition on `state` would invite the lease index, and a quadratic join.
-- Rows stay in place.
UPDATE bare.job AS job
SET state = 'succeeded',
    result = ended.result::json,
    finished_at = now(),
    updated_at = now(),
    lease_owner = NULL,
    lease_until = NULL
FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS ended (id, token, result)
WHERE job.id = ended.id
    AND job.token = ended.token
    AND job.lease_owner = $4
RETURNING job.id;

-- The owner stands for the state: a condition on `state` would invite the lease index, and a quadratic join.
-- Rows move to the history, which only grows at its end.
WITH gone AS (
    DELETE FROM bare.job AS job
    USING unnest($1::uuid[], $2::bigint[], $3::text[]) AS ended (id, token, result)
    WHERE job.id = ended.id
        AND job.token = ended.token
        AND job.lease_owner = $4
    RETURNING job.*, ended.result AS end_result
)
INSERT INTO bare.history (
    id, token, rank, run_at, created_at, updated_at, claimed_at, started_at, finished_at, priority, attempt,
    max_attempts, crashes, state, queue, kind, payload, result
)
SELECT
    id, token, rank, run_at, created_at, now(), claimed_at, started_at, now(), priority, attempt,
    max_attempts, crashes, 'succeeded', queue, kind, payload, end_result::json
FROM gone
RETURNING id;

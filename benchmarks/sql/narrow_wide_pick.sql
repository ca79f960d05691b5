SELECT
    json_group_array(job),
    json_group_array(json_array(rank, run_at, id, kind, token, attempt, max_attempts, priority, crashes, payload))
FROM (
    SELECT rowid AS job, rank, run_at, id, kind, token, attempt, max_attempts, priority, crashes, payload
    FROM bare_job INDEXED BY bare_claim_idx
    WHERE queue = 'bench' AND state = 'queued'
    ORDER BY rank, run_at, id
    LIMIT :limit
);

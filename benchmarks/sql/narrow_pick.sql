SELECT
    json_group_array(job),
    json_group_array(json_array(rank, run_at, id, kind, token, attempt, max_attempts, priority, crashes, payload))
FROM (
    SELECT r.job, j.rank, j.run_at, j.id, kind, token, attempt, max_attempts, priority, crashes, payload
    FROM (SELECT job FROM bare_ready WHERE queue = 'bench' ORDER BY rank, run_at, id LIMIT :limit) AS r
    CROSS JOIN bare_job AS j ON j.rowid = r.job
);

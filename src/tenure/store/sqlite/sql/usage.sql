-- What agents used: the statement of store/sqlite/usage.py.

-- name: sum_usage
-- The primary key begins with the job's id, and that with its time: only steps of the span are read, and no more than :steps.
WITH seen AS MATERIALIZED (
    SELECT s.job_id, s.value
    FROM tenure_step AS s
    WHERE s.job_id >= :low AND s.job_id < :high
    ORDER BY s.job_id DESC
    LIMIT :steps
), told AS (
    SELECT s.job_id, j.queue, j.kind,
        CASE json_type(s.value, '$.usage.input_tokens') WHEN 'integer' THEN s.value ->> '$.usage.input_tokens' ELSE 0 END AS input,
        CASE json_type(s.value, '$.usage.output_tokens') WHEN 'integer' THEN s.value ->> '$.usage.output_tokens' ELSE 0 END AS output,
        CAST(coalesce(s.value ->> '$.usage.cost', 0) AS REAL) AS usd
    FROM seen AS s
    CROSS JOIN tenure_job AS j ON j.id = s.job_id
    WHERE json_type(s.value, '$.usage') = 'object'
        AND (:queues IS NULL OR j.queue IN (SELECT value FROM json_each(:queues)))
        AND (:kinds IS NULL OR j.kind IN (SELECT value FROM json_each(:kinds)))
)
SELECT CASE :by WHEN 'agent' THEN t.queue WHEN 'kind' THEN t.kind ELSE t.job_id END, count(DISTINCT t.job_id), count(*),
    sum(min(max(t.input, 0), 1000000000000)) AS input_tokens, sum(min(max(t.output, 0), 1000000000000)) AS output_tokens,
    sum(CAST(round(min(max(t.usd, 0), 1000000) * 1000000) AS INTEGER)), (SELECT count(*) FROM seen)
FROM told AS t
GROUP BY 1
ORDER BY input_tokens + output_tokens DESC, 1
LIMIT :limit;

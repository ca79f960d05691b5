WITH RECURSIVE number (i) AS (
    SELECT 1
    UNION ALL
    SELECT i + 1
    FROM number
    WHERE i < ?1
)
INSERT INTO bare_job (id, queue, kind, state, token, attempt, run_at, created_at, updated_at, finished_at, payload)
SELECT
    lower(hex(randomblob(16))), 'bench', 'noop', 'succeeded', 1, 1, ?2, ?2, ?2, ?2,
    json_object('i', i, 'pad', printf('%.*c', 100 + i % 161, 'x'))
FROM number;

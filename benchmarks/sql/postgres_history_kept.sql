INSERT INTO bare.job (id, queue, kind, state, token, attempt, finished_at, payload)
SELECT
    gen_random_uuid(), 'bench', 'noop', 'succeeded', 1, 1, now(),
    json_build_object('i', i, 'pad', repeat('x', 100 + i % 161))
FROM generate_series(1, $1::int) AS i;

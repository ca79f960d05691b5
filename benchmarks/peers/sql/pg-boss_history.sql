-- Finished jobs as pg-boss leaves them, in the table that the bench queue lives in.
INSERT INTO pgboss.job (name, data, state, created_on, started_on, completed_on)
SELECT
    'bench',
    jsonb_build_object('i', i, 'pad', repeat('x', 180)),
    'completed',
    now() - interval '1 hour',
    now() - interval '1 hour',
    now() - interval '1 hour'
FROM generate_series(1, %(jobs)s) AS i;

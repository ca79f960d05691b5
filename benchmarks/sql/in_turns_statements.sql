-- What the server did since the last reset, the costliest statements first.
SELECT
    left(regexp_replace(query, '\s+', ' ', 'g'), 80),
    calls,
    total_exec_time * 1000,
    shared_blks_hit + shared_blks_read,
    wal_bytes::float8
FROM pg_stat_statements
ORDER BY total_exec_time DESC
LIMIT 3

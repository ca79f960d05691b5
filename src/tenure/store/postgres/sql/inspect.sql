-- inspect: what the server says about itself. No function: it must also answer where our schema is behind or not there.
SELECT json_build_object(
    'version', split_part(current_setting('server_version'), ' ', 1),
    'at', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    'database_bytes', pg_database_size(current_database()),
    'synchronous', current_setting('synchronous_commit'),
    'fsync', current_setting('fsync')::boolean,
    'live_rows', (SELECT s.n_live_tup FROM pg_stat_all_tables AS s WHERE s.schemaname = 'tenure' AND s.relname = 'job'),
    'dead_rows', (SELECT s.n_dead_tup FROM pg_stat_all_tables AS s WHERE s.schemaname = 'tenure' AND s.relname = 'job'),
    'oldest_transaction_seconds', (
        SELECT extract(epoch FROM max(clock_timestamp() - a.xact_start))::double precision
        FROM pg_stat_activity AS a
        WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()),
    'connections', (SELECT count(*) FROM pg_stat_activity AS a WHERE a.backend_type = 'client backend'),
    'max_connections', current_setting('max_connections')::integer,
    'is_standby', pg_is_in_recovery(),
    'role', session_user,
    'roles', (
        SELECT coalesce(json_object_agg(r.rolname, pg_has_role(session_user, r.oid, 'MEMBER')), '{}')
        FROM pg_roles AS r
        WHERE r.rolname IN ('tenure_producer', 'tenure_worker', 'tenure_reader', 'tenure_operator', 'tenure_admin'))
);

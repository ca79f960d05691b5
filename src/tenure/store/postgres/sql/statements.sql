-- Statements that are no calls of our functions, by name. Read by sql.py.

-- name: lock
-- One migration at a time in a database. Held until the transaction ends, so a process that dies leaves no lock behind.
SELECT pg_catalog.pg_advisory_xact_lock(8390046254714413154);

-- name: has_ledger
SELECT pg_catalog.to_regclass('tenure.migration') IS NOT NULL;

-- name: ledger
SELECT number, name, checksum, compatible_from FROM tenure.migration ORDER BY number;

-- name: record
INSERT INTO tenure.migration (number, name, checksum, compatible_from)
VALUES (%(number)s, %(name)s, %(checksum)s, %(compatible_from)s);

-- name: has_version
SELECT pg_catalog.to_regprocedure('tenure.schema_compatible_from()') IS NOT NULL;

-- name: version
SELECT tenure.schema_version(), tenure.schema_checksum(), tenure.schema_compatible_from();

-- name: inspect
-- What the server says about itself. No function: it must also answer where our schema is behind or not there.
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

-- name: search_path
-- A profile's SQL names what it means in full; nothing in another schema is picked up by chance.
SET LOCAL search_path = pg_catalog, pg_temp;

-- name: install_profile
SELECT tenure.install_profile(%(request)s::json);

-- name: analyze_queues
-- Small tables are never analysed by themselves, and without statistics the planner expects hundreds of queues.
ANALYZE tenure.queue, tenure.tally_mark, tenure.gate;

-- name: round_trip
SELECT 1;

-- name: commit
-- 200 bytes in the write-ahead log that are read by nothing. The commit is synced like that of a row.
SELECT pg_catalog.pg_logical_emit_message(true, 'tenure bench', pg_catalog.repeat('x', 200));

-- name: drop_queue
-- The jobs of a queue, their rows in other tables, and the queue, whose row goes first.
WITH queue AS (
    DELETE FROM tenure.queue WHERE name = %(name)s
), gone AS (
    DELETE FROM tenure.job WHERE queue = %(name)s RETURNING id
), attempts AS (
    DELETE FROM tenure.attempt WHERE job_id IN (SELECT id FROM gone)
), letters AS (
    DELETE FROM tenure.dead_letter WHERE job_id IN (SELECT id FROM gone)
), effects AS (
    DELETE FROM tenure.effect WHERE job_id IN (SELECT id FROM gone)
), events AS (
    DELETE FROM tenure.event WHERE job_id IN (SELECT id FROM gone)
), metrics AS (
    DELETE FROM tenure.metric WHERE queue = %(name)s
), metric_spans AS (
    DELETE FROM tenure.metric_span WHERE queue = %(name)s
), metric_parts AS (
    DELETE FROM tenure.metric_part WHERE queue = %(name)s
), metric_totals AS (
    DELETE FROM tenure.metric_total WHERE queue = %(name)s
), tallies AS (
    DELETE FROM tenure.tally WHERE kind = %(kind)s
), workers AS (
    DELETE FROM tenure.worker WHERE queues = ARRAY[%(name)s::text]
)
SELECT count(*) FROM gone;

-- name: may_drop
-- Whether this role may read and delete where a queue leaves rows.
SELECT bool_and(has_table_privilege('tenure.' || t.name, 'SELECT') AND has_table_privilege('tenure.' || t.name, 'DELETE'))
FROM unnest(
    ARRAY['queue', 'job', 'attempt', 'dead_letter', 'effect', 'event', 'metric', 'metric_span', 'metric_part', 'metric_total', 'tally', 'worker']
) AS t (name);

-- name: others
-- How many jobs of other kinds are in a queue.
SELECT count(*)
FROM tenure.job AS j
WHERE j.queue = %(name)s
    AND j.kind <> %(kind)s;

-- name: has_schema
SELECT to_regnamespace('tenure') IS NOT NULL;

-- name: drop_schema
DROP SCHEMA IF EXISTS tenure CASCADE;

-- name: drop_restart_grace
-- No lease is spared after a server's start. For a server that a test or a demo has started.
CREATE OR REPLACE FUNCTION tenure.restart_grace() RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT interval '0 seconds' $$;

-- name: has_clock
SELECT pg_catalog.to_regclass('tenure.test_clock') IS NOT NULL;

-- name: install_clock
-- For a test's own database only: from now on tenure.now() reads a table that the test moves.
CREATE TABLE tenure.test_clock (at timestamptz NOT NULL);

INSERT INTO tenure.test_clock (at) VALUES (tenure.from_us(%(now_us)s));

GRANT SELECT ON tenure.test_clock TO PUBLIC;

CREATE OR REPLACE FUNCTION tenure.now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL UNSAFE
AS $$ SELECT at FROM tenure.test_clock $$;

CREATE OR REPLACE FUNCTION tenure.restart_grace() RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT interval '0 seconds' $$;

-- name: set_clock
UPDATE tenure.test_clock SET at = tenure.from_us(%(now_us)s);

-- name: bound_look
-- Stop what this transaction asks for when it takes longer.
SELECT pg_catalog.set_config('statement_timeout', %s, true);

-- Whole tables, for `tenure move`. {table}, {columns} and the like are names that the catalogue itself told, quoted.

-- name: tables
-- Every table of the schema with its columns: name, type (of a domain the type below it), whether it counts up by itself, and its place
-- in the primary key.
SELECT c.relname, a.attname, coalesce(nullif(t.typbasetype, 0), t.oid)::pg_catalog.regtype::text, a.attidentity <> '',
    pg_catalog.array_position(i.indkey::smallint[], a.attnum)
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_index AS i ON i.indrelid = c.oid AND i.indisprimary
WHERE c.relnamespace = 'tenure'::pg_catalog.regnamespace AND c.relkind = 'r'
ORDER BY c.relname, a.attnum;

-- name: references
SELECT r.conrelid::pg_catalog.regclass::text, f.relname
FROM pg_catalog.pg_constraint AS r
JOIN pg_catalog.pg_class AS f ON f.oid = r.confrelid
WHERE r.contype = 'f' AND r.connamespace = 'tenure'::pg_catalog.regnamespace;

-- name: stranger
-- A table that this login does not own, nor any role that it is a member of.
SELECT c.relname
FROM pg_catalog.pg_class AS c
WHERE c.relnamespace = 'tenure'::pg_catalog.regnamespace AND c.relkind = 'r'
    AND NOT pg_catalog.pg_has_role(c.relowner, 'USAGE')
LIMIT 1;

-- name: count
SELECT count(*) FROM {table};

-- name: held
SELECT count(*) FROM tenure.job WHERE state IN ('leased', 'running');

-- name: flow_events
SELECT count(*) FROM tenure.flow_event;

-- name: by_index
-- A sort of a whole table would need as much temporary space on the server as the table takes.
SET LOCAL enable_sort = off;

-- name: rows
-- The key with its table's name: a name alone would be that of the answer's column, which is text and has no index.
SELECT {columns} FROM {table} AS t ORDER BY {key};

-- name: rows_after
SELECT {columns} FROM {table} AS t WHERE ({key}) > ({marks}) ORDER BY {key};

-- name: read_moment
-- A moment that never comes is on SQLite the last one of the year 9999, and one before all others -1.
CASE {column}
    WHEN 'infinity' THEN 253402300799999999
    WHEN '-infinity' THEN -1
    ELSE (EXTRACT(epoch FROM {column}) * 1000000)::bigint
END

-- name: read_day
({column} - '1970-01-01'::date)

-- name: read_list
array_to_json({column})::text

-- name: read_text
{column}::text

-- name: read_number
{column}::integer

-- name: moves
SELECT id::text, role, other, phase, leases, master, started_at, ended_at FROM tenure.move ORDER BY started_at, id;

-- name: record
INSERT INTO tenure.move (id, role, other, phase, leases, master, started_at, ended_at)
VALUES (%(id)s, %(role)s, %(other)s, %(phase)s, %(leases)s, %(master)s, %(started_at)s, %(ended_at)s)
ON CONFLICT (id) DO UPDATE
SET phase = excluded.phase,
    other = excluded.other,
    leases = excluded.leases,
    ended_at = excluded.ended_at;

-- name: wait_shortly
SET LOCAL lock_timeout = '5s';

-- name: lock_tables
-- Waits for the transactions that write to them now, and keeps new ones waiting until this one ends.
LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE;

-- name: set_gate
SELECT tenure.set_gate((%(gate)s::jsonb || '{"reason": "frozen for the move"}')::json);

-- name: refuse
CREATE TRIGGER tenure_move BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION tenure.refuse_writes({move}, {sentence});

-- name: admit
DROP TRIGGER IF EXISTS tenure_move ON {table};

-- name: adopt
-- Logins belong to a server: leases that came along are those of the login that moved them.
UPDATE tenure.job SET lease_login = tenure.login() WHERE state IN ('leased', 'running');

-- name: open
UPDATE tenure.move SET is_writing = true WHERE id = %(id)s;

-- name: close
UPDATE tenure.move SET is_writing = false WHERE id = %(id)s;

-- name: clear
DELETE FROM {table};

-- name: copy
COPY {table} ({columns}) FROM STDIN;

-- name: copied
SELECT name, after, rows, digest, is_done FROM tenure.move_table WHERE move_id = %(id)s;

-- name: copied_one
SELECT name, after, rows, digest, is_done FROM tenure.move_table WHERE move_id = %(id)s AND name = %(name)s;

-- name: note
INSERT INTO tenure.move_table (move_id, name, after, rows, digest, is_done)
VALUES (%(id)s, %(name)s, %(after)s, %(rows)s, %(digest)s, %(is_done)s)
ON CONFLICT (move_id, name) DO UPDATE
SET after = excluded.after,
    rows = excluded.rows,
    digest = excluded.digest,
    is_done = excluded.is_done;

-- name: counter
SELECT coalesce(pg_catalog.pg_sequence_last_value(pg_catalog.pg_get_serial_sequence(%(table)s, %(column)s)::pg_catalog.regclass), 0);

-- name: set_counter
SELECT pg_catalog.setval(pg_catalog.pg_get_serial_sequence(%(table)s, %(column)s), greatest(%(value)s, 1), %(value)s::bigint > 0);

-- name: analyze
ANALYZE {table};

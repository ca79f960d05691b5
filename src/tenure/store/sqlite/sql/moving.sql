-- Whole tables, for `tenure move`. {table}, {columns} and the like are names that the schema itself told, quoted.

-- name: tables
-- Every table of the schema, without the parts of the index of words, which its triggers fill.
SELECT substr(t.name, 8)
FROM pragma_table_list AS t
WHERE t.schema = 'main' AND t.type = 'table' AND t.name LIKE 'tenure\_%' ESCAPE '\'
ORDER BY t.name;

-- name: columns
SELECT c.name, c.pk FROM pragma_table_info(:table) AS c ORDER BY c.cid;

-- name: references
SELECT DISTINCT substr(f."table", 8) FROM pragma_foreign_key_list(:table) AS f;

-- name: counts_up
SELECT count(*) FROM sqlite_schema AS s WHERE s.name = :table AND s.sql LIKE '%PRIMARY KEY AUTOINCREMENT%';

-- name: count
SELECT count(*) FROM {table};

-- name: held
SELECT count(*) FROM tenure_job WHERE state IN ('leased', 'running');

-- name: flow_events
SELECT count(*) FROM tenure_flow_event;

-- name: rows
SELECT {columns} FROM {table} ORDER BY {key};

-- name: rows_after
SELECT {columns} FROM {table} WHERE ({key}) > ({marks}) ORDER BY {key};

-- name: moves
SELECT id, role, other, phase, leases, master, started_at, ended_at FROM tenure_move ORDER BY started_at, id;

-- name: record
INSERT INTO tenure_move (id, role, other, phase, leases, master, started_at, ended_at)
VALUES (:id, :role, :other, :phase, :leases, :master, :started_at, :ended_at)
ON CONFLICT (id) DO UPDATE
SET phase = excluded.phase,
    other = excluded.other,
    leases = excluded.leases,
    ended_at = excluded.ended_at;

-- name: refuse
-- For INSERT, UPDATE and DELETE each.
CREATE TRIGGER {trigger} BEFORE {act} ON {table}
WHEN (SELECT is_writing FROM tenure_move WHERE id = {move}) = 0
BEGIN
    SELECT RAISE(ABORT, {sentence});
END;

-- name: admit
DROP TRIGGER IF EXISTS {trigger};

-- name: open
UPDATE tenure_move SET is_writing = 1 WHERE id = :id;

-- name: close
UPDATE tenure_move SET is_writing = 0 WHERE id = :id;

-- name: clear
DELETE FROM {table};

-- name: insert
INSERT INTO {table} ({columns}) VALUES ({marks});

-- name: copied
SELECT name, after, rows, digest, is_done FROM tenure_move_table WHERE move_id = :id;

-- name: copied_one
SELECT name, after, rows, digest, is_done FROM tenure_move_table WHERE move_id = :id AND name = :name;

-- name: note
INSERT INTO tenure_move_table (move_id, name, after, rows, digest, is_done)
VALUES (:id, :name, :after, :rows, :digest, :is_done)
ON CONFLICT (move_id, name) DO UPDATE
SET after = excluded.after,
    rows = excluded.rows,
    digest = excluded.digest,
    is_done = excluded.is_done;

-- name: counter
SELECT seq FROM sqlite_sequence WHERE name = :table;

-- name: forget_counter
DELETE FROM sqlite_sequence WHERE name = :table;

-- name: set_counter
INSERT INTO sqlite_sequence (name, seq) VALUES (:table, :value);

-- The ledger of schema versions.

-- name: ledger_find
-- Whether the ledger of migrations is there.
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'tenure_migration';

-- name: ledger_read
-- The migrations that were applied.
SELECT number, name, checksum, compatible_from FROM tenure_migration ORDER BY number;

-- name: ledger_write
-- A migration was applied.
INSERT INTO tenure_migration (number, name, checksum, applied_at, compatible_from)
VALUES (:number, :name, :checksum, :applied_at, :compatible_from);

-- name: foreign_table
-- A table of another program. NULL if there is none.
SELECT min(name) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'tenure\_%' ESCAPE '\' AND name NOT LIKE 'sqlite\_%' ESCAPE '\';

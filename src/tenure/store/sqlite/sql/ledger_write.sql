-- ledger_write: a migration was applied.
INSERT INTO tenure_migration (number, name, checksum, applied_at) VALUES (?, ?, ?, ?);

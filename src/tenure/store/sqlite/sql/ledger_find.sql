-- ledger_find: whether the ledger of migrations is there.
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'tenure_migration';

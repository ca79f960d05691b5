-- ledger_read: the migrations that were applied.
SELECT number, name, checksum FROM tenure_migration ORDER BY number;

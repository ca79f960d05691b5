-- Settings of connections, and the statements around every transaction.

-- name: settings
-- FULL syncs every commit: accepted means durable. No connection checkpoints by itself: the writer does, under a lock that
-- all processes share (see checkpoint.py). Memory-mapped reads stay off: an I/O error would become a signal.
PRAGMA synchronous = FULL;
PRAGMA foreign_keys = ON;
PRAGMA wal_autocheckpoint = 0;
PRAGMA journal_size_limit = 67108864;
PRAGMA cache_size = -16384;
PRAGMA temp_store = MEMORY;
PRAGMA mmap_size = 0;
PRAGMA recursive_triggers = OFF;
-- A broken page is found when it is read. (trusted_schema stays on: older SQLite calls json_valid in a CHECK unsafe.)
PRAGMA cell_size_check = ON;

-- name: wal
PRAGMA journal_mode = WAL;

-- name: read_only
PRAGMA query_only = ON;

-- name: begin_write
-- IMMEDIATE: a lock that is asked for at the first write only fails without waiting if another process wrote in between.
BEGIN IMMEDIATE;

-- name: begin_read
BEGIN;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: savepoint
SAVEPOINT tenure_request;

-- name: savepoint_release
RELEASE tenure_request;

-- name: savepoint_undo
ROLLBACK TO tenure_request;

-- name: row_savepoint
SAVEPOINT tenure_row;

-- name: row_release
RELEASE tenure_row;

-- name: row_undo
ROLLBACK TO tenure_row;

-- name: quick_check
PRAGMA quick_check(20);

-- name: checkpoint
-- Moves what it can without waiting for readers.
PRAGMA wal_checkpoint(PASSIVE);

-- name: checkpoint_truncate
-- Waits up to busy_timeout for readers, then cuts the WAL to nothing.
PRAGMA wal_checkpoint(TRUNCATE);

-- name: wait_for_readers
PRAGMA busy_timeout = 100;

-- name: wait_long_for_readers
-- For a WAL that is about to reach its bound: writers wait for the truncation instead of making it larger.
PRAGMA busy_timeout = 5000;

-- name: wait_for_nothing
PRAGMA busy_timeout = 0;

-- name: database_list
PRAGMA database_list;

-- connect: what every connection of ours is set to.
-- FULL syncs every commit: accepted means durable. Nobody checkpoints on its own; the writer does, under a lock that
-- all processes share (see checkpoint.py). Memory-mapped reads stay off: an I/O error would become a signal.
PRAGMA synchronous = FULL;
PRAGMA foreign_keys = ON;
PRAGMA wal_autocheckpoint = 0;
PRAGMA journal_size_limit = 67108864;
PRAGMA cache_size = -16384;
PRAGMA temp_store = MEMORY;
PRAGMA mmap_size = 0;
PRAGMA recursive_triggers = OFF;

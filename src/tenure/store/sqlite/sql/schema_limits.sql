-- Limiters: see tenure.store.limits and tenure.model.limiter.

-- limiter: a key that has rates or was blocked. A key without a row holds nothing back.
CREATE TABLE tenure_limiter (
    key TEXT NOT NULL PRIMARY KEY,
    per_minute REAL,
    tokens_per_minute REAL,
    tokens_per_job REAL,
    -- requests, tokens: what was saved up at level_at.
    requests REAL NOT NULL DEFAULT 0,
    tokens REAL NOT NULL DEFAULT 0,
    level_at INTEGER NOT NULL,
    blocked_until INTEGER,
    strikes INTEGER NOT NULL DEFAULT 0,
    -- probes, probes_left, probe_at: the newest second of a slow reopening.
    probes INTEGER NOT NULL DEFAULT 0,
    probes_left INTEGER NOT NULL DEFAULT 0,
    probe_at INTEGER,
    reason TEXT,
    updated_at INTEGER NOT NULL,
    CONSTRAINT limiter_key_sound CHECK (trim(key) <> '' AND length(key) <= 100 AND instr(key, ',') = 0),
    CONSTRAINT limiter_rates_sound CHECK (
        coalesce(per_minute, 1) > 0 AND coalesce(tokens_per_minute, 1) > 0 AND coalesce(tokens_per_job, 1) > 0 AND strikes >= 0
    )
) STRICT;

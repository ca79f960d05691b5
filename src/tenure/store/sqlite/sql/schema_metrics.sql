-- What happened, counted once when it is over: by minute, then folded into hours and days. See the PostgreSQL schema.
CREATE TABLE tenure_metric (
    minute INTEGER NOT NULL,
    queue TEXT NOT NULL,
    profile TEXT NOT NULL,
    created INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    attempts_failed INTEGER NOT NULL DEFAULT 0,
    retried INTEGER NOT NULL DEFAULT 0,
    expired INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    latency_seconds REAL NOT NULL DEFAULT 0,
    busy_seconds REAL NOT NULL DEFAULT 0,
    heartbeat_delay_seconds REAL,
    PRIMARY KEY (minute, queue)
) STRICT;

CREATE TABLE tenure_metric_span (
    span TEXT NOT NULL,
    at INTEGER NOT NULL,
    queue TEXT NOT NULL,
    profile TEXT NOT NULL,
    created INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    attempts_failed INTEGER NOT NULL,
    retried INTEGER NOT NULL,
    expired INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    latency_seconds REAL NOT NULL,
    busy_seconds REAL NOT NULL,
    heartbeat_delay_seconds REAL,
    PRIMARY KEY (span, at, queue),
    CONSTRAINT metric_span_known CHECK (span IN ('hour', 'day'))
) STRICT, WITHOUT ROWID;

CREATE TABLE tenure_metric_part (
    span TEXT NOT NULL,
    at INTEGER NOT NULL,
    queue TEXT NOT NULL,
    what TEXT NOT NULL,
    part TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (span, at, queue, what, part),
    CONSTRAINT metric_part_span_known CHECK (span IN ('minute', 'hour', 'day')),
    CONSTRAINT metric_part_what_known CHECK (what IN ('wait', 'run', 'total', 'silence', 'class'))
) STRICT, WITHOUT ROWID;

-- The upper bounds of the buckets, in microseconds: not every SQLite has a logarithm. 330 of them reach beyond a million years.
CREATE TABLE tenure_metric_bound (
    bucket INTEGER NOT NULL PRIMARY KEY,
    bound REAL NOT NULL UNIQUE
) STRICT;
INSERT INTO tenure_metric_bound (bucket, bound)
WITH RECURSIVE step (bucket, bound) AS (
    SELECT 0, 1.0
    UNION ALL
    SELECT bucket + 1, bound * 1.1 FROM step WHERE bucket < 330
)
SELECT bucket, bound FROM step;

-- Minutes before counted_until are counted; hours before hour_until and days before day_until are folded.
CREATE TABLE tenure_metric_mark (
    is_only INTEGER NOT NULL PRIMARY KEY DEFAULT 1,
    counted_until INTEGER,
    hour_until INTEGER,
    day_until INTEGER,
    CONSTRAINT metric_mark_is_one CHECK (is_only = 1)
) STRICT;
INSERT INTO tenure_metric_mark DEFAULT VALUES;

-- Jobs whose ids do not tell when they were made: those that are no UUIDv7. Others pay for one look at their id.
CREATE INDEX job_created_idx ON tenure_job (created_at) WHERE substr(id, 15, 1) <> '7';
-- Failed attempts by when they ended. A success has no attempt row, so it pays nothing.
CREATE INDEX attempt_ended_idx ON tenure_attempt (ended_at);

-- Counters that only rise, for monitors, column for column as on PostgreSQL. store/gauges.py is the specification.

CREATE TABLE tenure_metric_total (
    queue TEXT NOT NULL,
    what TEXT NOT NULL,
    part TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (queue, what, part),
    CONSTRAINT metric_total_what_known CHECK (
        what IN ('created', 'retried', 'expired', 'succeeded', 'cancelled', 'dead', 'failed', 'run', 'wait', 'run_us', 'wait_us')
    )
) STRICT, WITHOUT ROWID;

-- metric_kind: the kinds that have counters of their own. A kind keeps its place for ever.
CREATE TABLE tenure_metric_kind (
    kind TEXT NOT NULL PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- Counters that only rise, for monitors. The functions are in functions/gauges.sql.

-- metric_total: what was counted of a queue since it exists. `part` is a kind, a bucket, or '' where there is nothing to tell apart.
CREATE TABLE tenure.metric_total (
    queue text NOT NULL,
    what text NOT NULL,
    part text NOT NULL,
    n bigint NOT NULL,
    PRIMARY KEY (queue, what, part),
    CONSTRAINT metric_total_what_known CHECK (
        what IN ('created', 'retried', 'expired', 'succeeded', 'cancelled', 'dead', 'failed', 'run', 'wait', 'run_us', 'wait_us')
    )
);

-- metric_kind: the kinds that have counters of their own. A kind keeps its place for ever: a counter that moved from one series to
-- another would fall, and a monitor would take that for a restart.
CREATE TABLE tenure.metric_kind (
    kind text PRIMARY KEY
);

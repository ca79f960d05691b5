-- What happened, counted once when it is over: by minute, then folded into hours and days. The functions are in functions/metrics.sql.

-- metric: what happened in a queue within a minute. latency_seconds is the sum, over the completed jobs, of their whole lives;
-- busy_seconds the sum of all attempts, however they ended.
CREATE TABLE tenure.metric (
    minute timestamptz NOT NULL,
    queue text NOT NULL,
    profile text NOT NULL,
    created bigint NOT NULL DEFAULT 0,
    completed bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    attempts_failed bigint NOT NULL DEFAULT 0,
    retried bigint NOT NULL DEFAULT 0,
    expired bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    latency_seconds double precision NOT NULL DEFAULT 0,
    busy_seconds double precision NOT NULL DEFAULT 0,
    heartbeat_delay_seconds double precision,
    PRIMARY KEY (minute, queue)
);

-- metric_span: the same for an hour or a day, the sum of its minutes.
CREATE TABLE tenure.metric_span (
    span text NOT NULL,
    at timestamptz NOT NULL,
    queue text NOT NULL,
    profile text NOT NULL,
    created bigint NOT NULL,
    completed bigint NOT NULL,
    failed bigint NOT NULL,
    attempts_failed bigint NOT NULL,
    retried bigint NOT NULL,
    expired bigint NOT NULL,
    cancelled bigint NOT NULL,
    latency_seconds double precision NOT NULL,
    busy_seconds double precision NOT NULL,
    heartbeat_delay_seconds double precision,
    PRIMARY KEY (span, at, queue),
    CONSTRAINT metric_span_known CHECK (span IN ('hour', 'day'))
);

-- metric_part: counts beside a metric that are merged by adding them. `what` is wait, run or total (durations of completed jobs) or silence
-- (of workers), and `part` a bucket; or `what` is class, and `part` the class of a failure.
CREATE TABLE tenure.metric_part (
    span text NOT NULL,
    at timestamptz NOT NULL,
    queue text NOT NULL,
    what text NOT NULL,
    part text NOT NULL,
    n bigint NOT NULL,
    PRIMARY KEY (span, at, queue, what, part),
    CONSTRAINT metric_part_span_known CHECK (span IN ('minute', 'hour', 'day')),
    CONSTRAINT metric_part_what_known CHECK (what IN ('wait', 'run', 'total', 'silence', 'class'))
);

-- Minutes before counted_until are counted; those before next_until are as soon as every transaction below next_xid has ended. Hours
-- before hour_until and days before day_until are folded.
CREATE TABLE tenure.metric_mark (
    is_only boolean PRIMARY KEY DEFAULT true,
    counted_until timestamptz,
    next_until timestamptz,
    next_xid xid8,
    hour_until timestamptz,
    day_until timestamptz,
    CONSTRAINT metric_mark_is_one CHECK (is_only)
);
INSERT INTO tenure.metric_mark DEFAULT VALUES;

-- Jobs whose ids do not tell when they were made: those that are no UUIDv7. Others pay for one look at their id.
CREATE INDEX job_created_idx ON tenure.job (created_at) WHERE (get_byte(uuid_send(id), 6) >> 4) <> 7;
-- Failed attempts by when they ended. A success has no attempt row, so it pays nothing.
CREATE INDEX attempt_ended_idx ON tenure.attempt (ended_at);

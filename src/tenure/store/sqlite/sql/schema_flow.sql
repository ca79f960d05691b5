-- Durable flow: what jobs have behind them, what they wait for, and who has to be told. Column for column PostgreSQL's flow.sql.

-- step: everything that a durable job has behind it. The first record of a key stays; ordinal is the order of first records.
-- token is the grant that wrote it last; of an open step the grant that waited for it last, which is the one that it wakes.
CREATE TABLE tenure_step (
    job_id TEXT NOT NULL,
    key TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    token INTEGER NOT NULL,
    value TEXT,
    error TEXT,
    awaits TEXT,
    due_at INTEGER,
    created_at INTEGER NOT NULL,
    ended_at INTEGER,
    PRIMARY KEY (job_id, key),
    CONSTRAINT step_in_order UNIQUE (job_id, ordinal),
    CONSTRAINT step_key_not_blank CHECK (trim(key) <> '' AND length(key) <= 300),
    CONSTRAINT step_kind_known CHECK (kind IN ('step', 'sleep', 'signal', 'group', 'approval', 'undo', 'mark', 'budget', 'memo', 'job')),
    CONSTRAINT step_state_known CHECK (state IN ('open', 'done', 'failed', 'armed', 'undone')),
    CONSTRAINT step_value_is_json CHECK (value IS NULL OR json_valid(value)),
    CONSTRAINT step_value_not_large CHECK (length(CAST(value AS BLOB)) <= 1048576)
) STRICT;
-- Who waits for a condition, the longest first.
CREATE INDEX step_awaits_idx ON tenure_step (awaits, created_at, job_id) WHERE state = 'open' AND awaits IS NOT NULL;

-- signal: what was told to those who wait for a key. Scope once: the first value stays. Scope queue: each is taken once.
-- What was taken stays until it expires, so that a repeated request finds its own row.
CREATE TABLE tenure_signal (
    id TEXT NOT NULL PRIMARY KEY,
    key TEXT NOT NULL,
    scope TEXT NOT NULL,
    job_id TEXT,
    taken_by TEXT,
    value TEXT NOT NULL,
    actor TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    CONSTRAINT signal_key_not_blank CHECK (trim(key) <> '' AND length(key) <= 300),
    CONSTRAINT signal_scope_known CHECK (scope IN ('once', 'queue')),
    CONSTRAINT signal_value_is_json CHECK (json_valid(value)),
    CONSTRAINT signal_value_not_large CHECK (length(CAST(value AS BLOB)) <= 1048576)
) STRICT;
CREATE INDEX signal_key_idx ON tenure_signal (key, created_at, id) WHERE taken_by IS NULL;
-- One value for a key of scope once, and one for each job that a value was meant for alone.
CREATE UNIQUE INDEX signal_once_idx ON tenure_signal (key, coalesce(job_id, '')) WHERE scope = 'once';
CREATE INDEX signal_expires_idx ON tenure_signal (expires_at);

-- flow_event: work that is too much for the transaction that found it. PostgreSQL writes every such fact here, because its sweep must
-- have a transaction of its own; one writer needs it only for what is paged.
--   look    the condition `awaits` is met, and more jobs wait for it than one transaction wakes
--   group   look at a group anew: it has room for more children than one transaction lets go
--   cancel  cancel the children of the group
--   budget  the budget `awaits` has room, and more jobs wait for it than one transaction wakes
CREATE TABLE tenure_flow_event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    what TEXT NOT NULL,
    awaits TEXT,
    group_id TEXT,
    detail TEXT
) STRICT;

-- job_group: children that a job waits for. 
-- total is null while pages are still being added. released: with a window, the children at positions below it were let go.
CREATE TABLE tenure_job_group (
    id TEXT NOT NULL PRIMARY KEY,
    parent_id TEXT NOT NULL,
    step_key TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'open',
    total INTEGER,
    made INTEGER NOT NULL DEFAULT 0,
    released INTEGER,
    ended INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    need INTEGER,
    tolerate INTEGER NOT NULL DEFAULT 0,
    fail_fast INTEGER NOT NULL DEFAULT 0,
    window_size INTEGER,
    cancel_rest INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    ended_at INTEGER,
    CONSTRAINT job_group_state_known CHECK (state IN ('open', 'done', 'failed')),
    CONSTRAINT job_group_numbers_sound CHECK (
        coalesce(total, 0) >= 0 AND coalesce(need, 0) >= 0 AND tolerate >= 0 AND coalesce(window_size, 1) >= 1
    )
) STRICT;
CREATE INDEX job_group_parent_idx ON tenure_job_group (parent_id);

-- group_member: which job is at which place of a group.
CREATE TABLE tenure_group_member (
    group_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    PRIMARY KEY (group_id, position)
) STRICT;

-- Durable flow: what jobs have behind them, what they wait for, and who has to be told. The functions are in functions/flow.sql.

-- step: everything that a durable job has behind it. The first record of a key stays; ordinal is the order of first records.
-- token is the grant that wrote it last; of an open step the grant that waited for it last, which is the one that it wakes.
CREATE TABLE tenure.step (
    job_id uuid NOT NULL,
    key text NOT NULL,
    ordinal integer NOT NULL,
    kind text NOT NULL,
    state text NOT NULL,
    token bigint NOT NULL,
    value json,
    error text,
    awaits text,
    due_at timestamptz,
    created_at timestamptz NOT NULL,
    ended_at timestamptz,
    PRIMARY KEY (job_id, key),
    CONSTRAINT step_in_order UNIQUE (job_id, ordinal),
    CONSTRAINT step_key_not_blank CHECK (btrim(key) <> '' AND length(key) <= 300),
    CONSTRAINT step_kind_known CHECK (kind IN ('step', 'sleep', 'signal', 'group', 'approval', 'undo', 'mark', 'budget', 'memo', 'job')),
    CONSTRAINT step_state_known CHECK (state IN ('open', 'done', 'failed', 'armed', 'undone')),
    CONSTRAINT step_value_not_large CHECK (octet_length(value::text) <= 1048576)
);
-- Who waits for a condition, the longest first.
CREATE INDEX step_awaits_idx ON tenure.step (awaits, created_at, job_id) WHERE state = 'open' AND awaits IS NOT NULL;

-- signal: what was told to those who wait for a key. Scope once: the first value stays. Scope queue: each is taken once.
-- What was taken stays until it expires, so that a repeated request finds its own row.
CREATE TABLE tenure.signal (
    id uuid PRIMARY KEY,
    key text NOT NULL,
    scope text NOT NULL,
    job_id uuid,
    taken_by uuid,
    value json NOT NULL,
    actor text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT signal_key_not_blank CHECK (btrim(key) <> '' AND length(key) <= 300),
    CONSTRAINT signal_scope_known CHECK (scope IN ('once', 'queue')),
    CONSTRAINT signal_value_not_large CHECK (octet_length(value::text) <= 1048576)
);
CREATE INDEX signal_key_idx ON tenure.signal (key, created_at, id) WHERE taken_by IS NULL;
-- One value for a key of scope once, and one for each job that a value was meant for alone.
CREATE UNIQUE INDEX signal_once_idx ON tenure.signal (key, coalesce(job_id, '00000000-0000-0000-0000-000000000000')) WHERE scope = 'once';
CREATE INDEX signal_expires_idx ON tenure.signal (expires_at);

-- flow_event: what happened that may concern others. Workers only insert; a sweep reads and deletes, in its own transaction.
--   look    the condition `awaits` may be met now: for all who wait for it, or for the job `job_id`, which has just parked or is meant alone
--   end     children of a group have ended: so many, of which so many failed or were cancelled
--   group   look at a group anew: it has room
--   cancel  cancel the children of the group
--   budget  the budget `awaits` may have room now, or a job has just parked on it
CREATE TABLE tenure.flow_event (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    what text NOT NULL,
    awaits text,
    group_id uuid,
    job_id uuid,
    ended integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    cancelled integer NOT NULL DEFAULT 0,
    detail json
);

-- job_group: children that a job waits for. Written by the sweep, and by the pages that fill it; an exchange only makes new ones.
-- total is null while pages are still being added. released: with a window, the children at positions below it were let go.
CREATE TABLE tenure.job_group (
    id uuid PRIMARY KEY,
    parent_id uuid NOT NULL,
    step_key text NOT NULL,
    state text NOT NULL DEFAULT 'open',
    total integer,
    made integer NOT NULL DEFAULT 0,
    released integer,
    ended integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    cancelled integer NOT NULL DEFAULT 0,
    need integer,
    tolerate integer NOT NULL DEFAULT 0,
    fail_fast boolean NOT NULL DEFAULT false,
    window_size integer,
    cancel_rest boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL,
    ended_at timestamptz,
    CONSTRAINT job_group_state_known CHECK (state IN ('open', 'done', 'failed')),
    CONSTRAINT job_group_numbers_sound CHECK (
        coalesce(total, 0) >= 0 AND coalesce(need, 0) >= 0 AND tolerate >= 0 AND coalesce(window_size, 1) >= 1
    )
) WITH (fillfactor = 50);
CREATE INDEX job_group_parent_idx ON tenure.job_group (parent_id);

-- group_member: which job is at which place of a group.
CREATE TABLE tenure.group_member (
    group_id uuid NOT NULL,
    position integer NOT NULL,
    job_id uuid NOT NULL,
    PRIMARY KEY (group_id, position)
);

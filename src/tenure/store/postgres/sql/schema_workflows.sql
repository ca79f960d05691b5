-- Workflows on PostgreSQL: the graph of tasks, what is still to be folded, and escalations. The rules stand in store/workflows.py.
--
-- Locks: an exchange, a cancel and a revive only insert into workflow_event. Everything else locks the workflow's row first, which
-- guards its tasks, edges and escalations, and then job rows by rising id.

-- task: the place of a job in its workflow. `needs` and `broken` count its edges that are not met yet, and those that cannot be met
-- any more. Both are sums, so that the order in which ends are folded does not matter.
CREATE TABLE tenure.task (
    job_id uuid PRIMARY KEY,
    workflow_id uuid NOT NULL,
    name text NOT NULL,
    needs integer NOT NULL DEFAULT 0,
    broken integer NOT NULL DEFAULT 0,
    depth integer NOT NULL DEFAULT 0,
    is_optional boolean NOT NULL DEFAULT false,
    is_released boolean NOT NULL DEFAULT false,
    -- outcome: how its end was counted; null while it is open.
    outcome text,
    -- fan_out: of a fan-out, where its items come from. items are known once it was released.
    fan_out json,
    items integer,
    items_made integer NOT NULL DEFAULT 0,
    items_ended integer NOT NULL DEFAULT 0,
    items_failed integer NOT NULL DEFAULT 0,
    -- parent: of an item, its fan-out.
    parent uuid,
    CONSTRAINT task_outcome_known CHECK (outcome IN ('succeeded', 'failed', 'tolerated', 'skipped', 'cancelled')),
    CONSTRAINT task_name_once UNIQUE (workflow_id, name)
) WITH (fillfactor = 80);
CREATE INDEX task_outcome_idx ON tenure.task (workflow_id, outcome, job_id);
-- Nothing is missing to release these; empty while a workflow goes forward.
CREATE INDEX task_ready_idx ON tenure.task (workflow_id, job_id)
WHERE needs <= 0 AND broken <= 0 AND NOT is_released AND outcome IS NULL;
CREATE INDEX task_released_idx ON tenure.task (workflow_id, job_id) WHERE is_released AND outcome IS NULL;

-- edge: `dst` waits for `src`: for its success (ok), or for any end (ended).
CREATE TABLE tenure.edge (
    src uuid NOT NULL,
    dst uuid NOT NULL,
    kind text NOT NULL DEFAULT 'ok',
    PRIMARY KEY (src, dst),
    CONSTRAINT edge_kind_known CHECK (kind IN ('ok', 'ended'))
);
CREATE INDEX edge_dst_idx ON tenure.edge (dst);

-- workflow_event: what is still to be folded. `look`: a task's job has ended or was revived. The others are the rest of something that
-- was too long for one transaction: `spread` (the edges of a task behind `after`), `release`, `cancel`, `retry`, `expand`.
CREATE TABLE tenure.workflow_event (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    workflow_id uuid NOT NULL,
    job_id uuid,
    was text,
    became text,
    after text NOT NULL DEFAULT ''
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
CREATE INDEX workflow_event_rest_idx ON tenure.workflow_event (workflow_id, kind) WHERE kind <> 'look';

-- escalation: a question about a workflow. One row per round and level, however many raise it.
CREATE TABLE tenure.escalation (
    id uuid PRIMARY KEY,
    workflow_id uuid NOT NULL,
    round integer NOT NULL,
    level integer NOT NULL,
    reason text NOT NULL,
    detail text NOT NULL,
    target json NOT NULL,
    person text,
    job_id uuid,
    state text NOT NULL DEFAULT 'open',
    due_at timestamptz,
    created_at timestamptz NOT NULL,
    ended_at timestamptz,
    answer text,
    answered_by text,
    note text,
    CONSTRAINT escalation_once UNIQUE (workflow_id, round, level),
    CONSTRAINT escalation_state_known CHECK (state IN ('open', 'answered', 'passed', 'closed'))
);
CREATE INDEX escalation_due_idx ON tenure.escalation (due_at) WHERE state = 'open' AND due_at IS NOT NULL;
CREATE INDEX escalation_open_idx ON tenure.escalation (person, created_at) WHERE state = 'open';
CREATE INDEX escalation_job_idx ON tenure.escalation (job_id) WHERE job_id IS NOT NULL;

-- task_change: how a task's end is counted now, and behind which successor its edges are still to be walked.
CREATE TYPE tenure.task_change AS (job_id uuid, workflow_id uuid, was text, became text, parent uuid, after uuid);

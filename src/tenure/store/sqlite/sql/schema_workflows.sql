-- Workflows on SQLite: the graph of tasks, what is still to be folded, and escalations. The rules stand in store/workflows.py.

-- task: the place of a job in its workflow. `needs` and `broken` count its edges that are not met yet, and those that cannot be met
-- any more. Both are sums, so that the order in which ends are folded does not matter.
CREATE TABLE tenure_task (
    job_id TEXT NOT NULL PRIMARY KEY,
    workflow_id TEXT NOT NULL,
    name TEXT NOT NULL,
    needs INTEGER NOT NULL DEFAULT 0,
    broken INTEGER NOT NULL DEFAULT 0,
    depth INTEGER NOT NULL DEFAULT 0,
    is_optional INTEGER NOT NULL DEFAULT 0,
    is_released INTEGER NOT NULL DEFAULT 0,
    -- outcome: how its end was counted; NULL while it is open.
    outcome TEXT,
    -- fan_out: of a fan-out, where its items come from. items are known once it was released.
    fan_out TEXT,
    items INTEGER,
    items_made INTEGER NOT NULL DEFAULT 0,
    items_ended INTEGER NOT NULL DEFAULT 0,
    items_failed INTEGER NOT NULL DEFAULT 0,
    -- parent: of an item, its fan-out.
    parent TEXT,
    CONSTRAINT task_outcome_known CHECK (outcome IN ('succeeded', 'failed', 'tolerated', 'skipped', 'cancelled')),
    CONSTRAINT task_name_once UNIQUE (workflow_id, name)
) STRICT;
CREATE INDEX task_outcome_idx ON tenure_task (workflow_id, outcome, job_id);
-- Nothing is missing to release these; empty while a workflow goes forward.
CREATE INDEX task_ready_idx ON tenure_task (workflow_id, job_id)
WHERE needs <= 0 AND broken <= 0 AND is_released = 0 AND outcome IS NULL;
CREATE INDEX task_released_idx ON tenure_task (workflow_id, job_id) WHERE is_released = 1 AND outcome IS NULL;

-- edge: `dst` waits for `src`: for its success (ok), or for any end (ended).
CREATE TABLE tenure_edge (
    src TEXT NOT NULL,
    dst TEXT NOT NULL,
    kind TEXT NOT NULL DEFAULT 'ok',
    PRIMARY KEY (src, dst),
    CONSTRAINT edge_kind_known CHECK (kind IN ('ok', 'ended'))
) STRICT, WITHOUT ROWID;
CREATE INDEX edge_dst_idx ON tenure_edge (dst);

-- workflow_event: what is still to be folded. `look`: a task's job has ended or was revived. The others are the rest of something that
-- was too long for one transaction: `spread` (the edges of a task behind `after`), `release`, `cancel`, `retry`, `expand`.
CREATE TABLE tenure_workflow_event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    workflow_id TEXT NOT NULL,
    job_id TEXT,
    was TEXT,
    became TEXT,
    after TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX workflow_event_rest_idx ON tenure_workflow_event (workflow_id, kind) WHERE kind <> 'look';

-- escalation: a question about a workflow. One row per round and level, however many raise it.
CREATE TABLE tenure_escalation (
    id TEXT NOT NULL PRIMARY KEY,
    workflow_id TEXT NOT NULL,
    round INTEGER NOT NULL,
    level INTEGER NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    target TEXT NOT NULL,
    person TEXT,
    job_id TEXT,
    state TEXT NOT NULL DEFAULT 'open',
    due_at INTEGER,
    created_at INTEGER NOT NULL,
    ended_at INTEGER,
    answer TEXT,
    answered_by TEXT,
    note TEXT,
    CONSTRAINT escalation_once UNIQUE (workflow_id, round, level),
    CONSTRAINT escalation_state_known CHECK (state IN ('open', 'answered', 'passed', 'closed'))
) STRICT;
CREATE INDEX escalation_due_idx ON tenure_escalation (due_at) WHERE state = 'open' AND due_at IS NOT NULL;
CREATE INDEX escalation_open_idx ON tenure_escalation (person, created_at) WHERE state = 'open';
CREATE INDEX escalation_job_idx ON tenure_escalation (job_id) WHERE job_id IS NOT NULL;

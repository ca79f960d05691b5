-- Budgets, column for column as on PostgreSQL. store/budgets.py is the specification.

-- budget: how much the jobs of a scope may spend of a unit in a window. usd and seconds are counted in millionths.
CREATE TABLE tenure_budget (
    id TEXT NOT NULL PRIMARY KEY,
    -- scope: all, queue:NAME, kind:NAME, tenant:NAME, workflow:ID, job:ID.
    scope TEXT NOT NULL,
    unit TEXT NOT NULL,
    per TEXT NOT NULL,
    cap INTEGER NOT NULL,
    used INTEGER NOT NULL DEFAULT 0,
    reserved INTEGER NOT NULL DEFAULT 0,
    on_empty TEXT NOT NULL DEFAULT 'park',
    -- The window that used and reserved count for; null for total.
    window_from INTEGER,
    window_until INTEGER,
    -- raises: the ids of the last raises, so that a repeated one adds nothing.
    raises TEXT NOT NULL DEFAULT '[]',
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    CONSTRAINT budget_once UNIQUE (scope, unit, per),
    CONSTRAINT budget_unit_known CHECK (unit IN ('usd', 'tokens', 'calls', 'seconds')),
    CONSTRAINT budget_per_known CHECK (per IN ('hour', 'day', 'month', 'total')),
    CONSTRAINT budget_on_empty_known CHECK (on_empty IN ('park', 'fail', 'escalate')),
    CONSTRAINT budget_amounts_sound CHECK (cap >= 0 AND used >= 0 AND reserved >= 0)
) STRICT;

-- spend: what a grant has reserved in one budget, and what it has cost. No foreign key: it outlives the budget.
--   granted  reserved for a job that waited; the grant that follows takes it over
--   held     reserved by a grant that is at work
--   done     settled
--   broken   the grant ended without success, or without saying what was spent: then all that was reserved counts as used
CREATE TABLE tenure_spend (
    job_id TEXT NOT NULL,
    token INTEGER NOT NULL,
    key TEXT NOT NULL,
    budget_id TEXT NOT NULL,
    state TEXT NOT NULL,
    reserved INTEGER NOT NULL,
    -- No amount was named, so all that was left is reserved.
    is_rest INTEGER NOT NULL DEFAULT 0,
    used INTEGER NOT NULL DEFAULT 0,
    -- The budget's window when it was reserved: it counts there and in no other.
    window_from INTEGER,
    at INTEGER NOT NULL,
    PRIMARY KEY (job_id, token, key, budget_id),
    CONSTRAINT spend_state_known CHECK (state IN ('granted', 'held', 'done', 'broken'))
) STRICT;
-- Empty unless reservations are at work: one look at it tells a sweep that there is nothing to do.
CREATE INDEX spend_open_idx ON tenure_spend (state, job_id) WHERE state IN ('granted', 'held');

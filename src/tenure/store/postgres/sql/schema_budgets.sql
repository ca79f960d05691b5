-- Budgets. store/budgets.py is the specification; the functions are in functions/budgets.sql.

-- budget: how much the jobs of a scope may spend of a unit in a window. usd and seconds are counted in millionths.
-- Locked by rising id, always after the rows of jobs.
CREATE TABLE tenure.budget (
    id uuid PRIMARY KEY,
    -- scope: all, queue:NAME, kind:NAME, tenant:NAME, workflow:ID, job:ID.
    scope text NOT NULL,
    unit text NOT NULL,
    per text NOT NULL,
    cap bigint NOT NULL,
    used bigint NOT NULL DEFAULT 0,
    reserved bigint NOT NULL DEFAULT 0,
    on_empty text NOT NULL DEFAULT 'park',
    -- The window that used and reserved count for; null for total.
    window_from timestamptz,
    window_until timestamptz,
    -- raises: the ids of the last raises, so that a repeated one adds nothing.
    raises json NOT NULL DEFAULT '[]',
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT budget_once UNIQUE (scope, unit, per),
    CONSTRAINT budget_unit_known CHECK (unit IN ('usd', 'tokens', 'calls', 'seconds')),
    CONSTRAINT budget_per_known CHECK (per IN ('hour', 'day', 'month', 'total')),
    CONSTRAINT budget_on_empty_known CHECK (on_empty IN ('park', 'fail', 'escalate')),
    CONSTRAINT budget_amounts_sound CHECK (cap >= 0 AND used >= 0 AND reserved >= 0)
) WITH (fillfactor = 50);

-- spend: what a grant has reserved in one budget, and what it has cost. No foreign key: it outlives the budget.
--   granted  reserved for a job that waited; the grant that follows takes it over
--   held     reserved by a grant that is at work
--   done     settled
--   broken   the grant ended without success, or without saying what was spent: then all that was reserved counts as used
CREATE TABLE tenure.spend (
    job_id uuid NOT NULL,
    token bigint NOT NULL,
    key text NOT NULL,
    budget_id uuid NOT NULL,
    state text NOT NULL,
    reserved bigint NOT NULL,
    -- No amount was named, so all that was left is reserved.
    is_rest boolean NOT NULL DEFAULT false,
    used bigint NOT NULL DEFAULT 0,
    -- The budget's window when it was reserved: it counts there and in no other.
    window_from timestamptz,
    at timestamptz NOT NULL,
    PRIMARY KEY (job_id, token, key, budget_id),
    CONSTRAINT spend_state_known CHECK (state IN ('granted', 'held', 'done', 'broken'))
) WITH (fillfactor = 70);
-- Empty unless reservations are at work: one look at it tells a sweep that there is nothing to do.
CREATE INDEX spend_open_idx ON tenure.spend (state, job_id) WHERE state IN ('granted', 'held');

-- Made from schema.sql, functions/*.sql and roles.sql by `python -m tenure.store.postgres.migrate --write`.

-- schema.sql

-- Tenure on PostgreSQL: the tables. The functions that guard them are in functions/, one a file.
--
-- Law: only functions write. Every function reads the time once, through tenure.now().
--
-- Locks are taken in this order, so that no two functions can wait for each other in a circle:
--   1. queue rows (share), 2. job rows by rising id, 3. everything that belongs to a job (attempt, dead_letter, effect, event),
--   4. waiter rows, then worker rows, 5. named leases, 6. the tally's mark, 7. the metrics' mark.
-- A claim never waits for a job row: it skips what is locked. Neither does an enqueue that hands a job over, nor for a waiter's row.

CREATE SCHEMA IF NOT EXISTS tenure;

-- now: the store's clock. Every judgement on a lease uses it, never a caller's time.
-- tenure.testing replaces this function in a test database by one that reads a clock set by hand.
CREATE OR REPLACE FUNCTION tenure.now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT pg_catalog.clock_timestamp() $$;

-- restart_grace: for this long after the server started, no lease counts as run out. Workers that lost the
-- database with the server get the time to come back to jobs that they hold, and no attempt is burnt by an outage.
CREATE OR REPLACE FUNCTION tenure.restart_grace() RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT interval '30 seconds' $$;

-- expiry_cutoff: leases up to this moment have run out.
CREATE OR REPLACE FUNCTION tenure.expiry_cutoff(p_now timestamptz) RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN pg_catalog.clock_timestamp() < pg_catalog.pg_postmaster_start_time() + tenure.restart_grace()
            THEN '-infinity'::timestamptz
        ELSE p_now
    END
$$;

-- has_key: whether a JSON value carries one of the keys, at any depth. For the payload guard.
-- In plpgsql, so that the planner cannot inline it: the CHECK that calls it is prepared anew by every insert and update.
CREATE OR REPLACE FUNCTION tenure.has_key(p_value jsonb, p_keys text[]) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1
        FROM pg_catalog.jsonb_path_query(p_value, 'strict $.**?(@.type() == "object").keyvalue().key') AS found(name)
        WHERE (found.name #>> '{}') = ANY (p_keys)
    );
END
$$;

-- is_free_of: whether a payload carries none of the keys. Strict: where nothing is forbidden the CHECK that calls it passes unasked.
CREATE OR REPLACE FUNCTION tenure.is_free_of(p_payload json, p_keys text[]) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$ BEGIN RETURN NOT tenure.has_key(p_payload::pg_catalog.jsonb, p_keys); END $$;

-- Rules of job are domains: PostgreSQL reads those once a session, but a table's CHECK anew in every statement that writes a row, which
-- costs a single job more than writing it does.
CREATE DOMAIN tenure.job_state AS text
    CONSTRAINT job_state_known CHECK (VALUE = ANY ('{queued,leased,running,waiting,succeeded,failed,dead,cancelled}'));
CREATE DOMAIN tenure.job_kind AS text
    CONSTRAINT job_kind_not_blank CHECK (VALUE <> '' AND length(VALUE) <= 200);
CREATE DOMAIN tenure.attempts AS integer
    CONSTRAINT job_attempts_sound CHECK (VALUE >= 0);
CREATE DOMAIN tenure.max_attempts AS integer
    CONSTRAINT job_attempts_sound CHECK (VALUE >= 1);

-- Rules over several columns are those of a domain too, over what they need to know. A state is known by its first letter: no two have
-- the same, and job_state has looked at the rest. A job that is held has both a lease and an owner, any other has neither.
CREATE TYPE tenure.job_facts AS (is_finished boolean, leases integer, state tenure.job_state);
CREATE DOMAIN tenure.job_rules AS tenure.job_facts
    CONSTRAINT job_finished_iff_terminal CHECK ((VALUE).is_finished = ((VALUE).state::"char" = ANY ('{s,f,d,c}')))
    CONSTRAINT job_leased_iff_held CHECK ((VALUE).leases = CASE WHEN (VALUE).state::"char" = ANY ('{l,r}') THEN 2 ELSE 0 END);

CREATE TABLE tenure.migration (
    number integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

CREATE TABLE tenure.queue (
    name text PRIMARY KEY,
    profile text NOT NULL DEFAULT 'default',
    priority_order text NOT NULL DEFAULT 'high',
    priority_default integer NOT NULL DEFAULT 0,
    aging_seconds double precision,
    start_on_claim boolean NOT NULL DEFAULT true,
    max_attempts integer NOT NULL DEFAULT 3,
    backoff_shape text NOT NULL DEFAULT 'exponential',
    backoff_base_seconds double precision NOT NULL DEFAULT 5,
    backoff_power double precision NOT NULL DEFAULT 2,
    backoff_factor double precision NOT NULL DEFAULT 2,
    backoff_cap_seconds double precision NOT NULL DEFAULT 3600,
    backoff_jitter double precision NOT NULL DEFAULT 0.1,
    lease_seconds double precision NOT NULL DEFAULT 60,
    lease_max_seconds double precision NOT NULL DEFAULT 86400,
    key_scope text NOT NULL DEFAULT 'active',
    key_space text NOT NULL DEFAULT 'kind',
    key_required boolean NOT NULL DEFAULT false,
    key_window_seconds double precision NOT NULL DEFAULT 86400,
    key_conflict text NOT NULL DEFAULT 'error',
    revive text NOT NULL DEFAULT 'revive',
    on_unknown_kind text NOT NULL DEFAULT 'leave',
    forbidden_keys text[],
    concurrency integer,
    concurrency_per_key integer,
    retain_seconds double precision DEFAULT 604800,
    events boolean NOT NULL DEFAULT false,
    paused_at timestamptz,
    paused_by text,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT queue_name_not_blank CHECK (btrim(name) <> '' AND length(name) <= 200),
    CONSTRAINT queue_priority_order_known CHECK (priority_order IN ('high', 'low')),
    CONSTRAINT queue_backoff_shape_known CHECK (backoff_shape IN ('none', 'constant', 'linear', 'power', 'exponential')),
    CONSTRAINT queue_key_scope_known CHECK (key_scope IN ('none', 'active', 'window', 'forever')),
    CONSTRAINT queue_key_space_known CHECK (key_space IN ('kind', 'global')),
    CONSTRAINT queue_key_conflict_known CHECK (key_conflict IN ('error', 'tolerate')),
    CONSTRAINT queue_revive_known CHECK (revive IN ('revive', 'clone')),
    CONSTRAINT queue_on_unknown_kind_known CHECK (on_unknown_kind IN ('leave', 'reject', 'release')),
    CONSTRAINT queue_numbers_sound CHECK (
        max_attempts >= 1 AND lease_seconds > 0 AND lease_max_seconds >= lease_seconds
        AND backoff_base_seconds >= 0 AND backoff_cap_seconds >= 0 AND backoff_jitter >= 0 AND key_window_seconds > 0
        AND coalesce(concurrency, 1) >= 1 AND coalesce(concurrency_per_key, 1) >= 1
        AND coalesce(retain_seconds, 0) >= 0 AND coalesce(aging_seconds, 1) > 0
    )
);

-- Empty unless somebody asked for lifecycle events: one look at it tells every move that there is nothing to write.
CREATE INDEX queue_events_idx ON tenure.queue (name) WHERE events;

-- A gate without a row is open.
CREATE TABLE tenure.gate (
    name text PRIMARY KEY,
    is_open boolean NOT NULL,
    actor text NOT NULL,
    updated_at timestamptz NOT NULL
);
-- Empty unless a gate is closed: one look at it tells an enqueue that none is.
CREATE INDEX gate_closed_idx ON tenure.gate (name) WHERE NOT is_open;

-- job: every job, live or ended. Three writes in a good life: insert, grant, end.
-- payload and result are `json`, not `jsonb`: what was enqueued comes back byte for byte, and writing costs less.
CREATE TABLE tenure.job (
    id uuid PRIMARY KEY,
    token bigint NOT NULL DEFAULT 0,
    rank bigint NOT NULL,
    run_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    lease_until timestamptz,
    claimed_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    cleaned_at timestamptz,
    cancel_requested_at timestamptz,
    priority integer NOT NULL,
    attempt tenure.attempts NOT NULL DEFAULT 0,
    max_attempts tenure.max_attempts NOT NULL,
    crashes tenure.attempts NOT NULL DEFAULT 0,
    -- is_due: run_at had passed when the row was last written. Jobs due later stay out of the claim's index.
    is_due boolean NOT NULL,
    state tenure.job_state NOT NULL DEFAULT 'queued',
    -- No foreign key: enqueue has read the queue's row, queues are never deleted, and a lookup per row costs more than the insert.
    queue text NOT NULL,
    kind tenure.job_kind NOT NULL,
    profile text NOT NULL,
    payload json,
    payload_hash text,
    lease_owner text,
    idempotency_key text,
    dedup_slot text,
    affinity_key text,
    concurrency_key text,
    waiting_for text,
    source_ref text,
    target_ref text,
    payload_ref text,
    actor text,
    created_by_user_id uuid,
    requested_by_user_id uuid,
    tenant text,
    workflow_id uuid,
    parent_id uuid,
    run_id uuid,
    trace text,
    backoff json,
    forbidden_keys text[],
    progress json,
    result json,
    result_summary text,
    artifacts_path text,
    last_error text,
    failure_class text,
    -- Always true: whatever is wrong, the domain refuses, by the name of its rule.
    CONSTRAINT job_rules_kept CHECK (
        ROW(finished_at IS NOT NULL, num_nonnulls(lease_until, lease_owner), state)::tenure.job_facts::tenure.job_rules IS DISTINCT FROM NULL
    ),
    CONSTRAINT job_payload_gone_only_when_cleaned CHECK (payload IS NOT NULL OR cleaned_at IS NOT NULL),
    CONSTRAINT job_payload_guarded CHECK (tenure.is_free_of(payload, forbidden_keys))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_analyze_scale_factor = 0.05);

-- Claim order, on claimable rows only: neither history nor jobs due later cost it anything.
CREATE INDEX job_claim_idx ON tenure.job (queue, rank, run_at, id) WHERE state = 'queued' AND is_due;
-- Jobs that come due later, and suspended ones with a time to wake.
CREATE INDEX job_due_idx ON tenure.job (run_at) WHERE NOT is_due AND state IN ('queued', 'waiting');
-- Held jobs, by when their lease runs out.
CREATE INDEX job_lease_idx ON tenure.job (lease_until) WHERE state IN ('leased', 'running');
-- One job per slot: this index decides, whoever looked before.
CREATE UNIQUE INDEX job_dedup_idx ON tenure.job (dedup_slot) WHERE dedup_slot IS NOT NULL;
-- For people and for retention: paid once, when a job ends.
CREATE INDEX job_finished_idx ON tenure.job (finished_at) WHERE finished_at IS NOT NULL AND cleaned_at IS NULL;
-- Cleaned rows that may be deleted one day: paid when a job is cleaned.
CREATE INDEX job_cleaned_idx ON tenure.job (finished_at) WHERE cleaned_at IS NOT NULL;
CREATE INDEX job_waiting_idx ON tenure.job (waiting_for) WHERE state = 'waiting';
CREATE INDEX job_workflow_idx ON tenure.job (workflow_id) WHERE workflow_id IS NOT NULL;
CREATE INDEX job_parent_idx ON tenure.job (parent_id) WHERE parent_id IS NOT NULL;

-- attempt: one row for each attempt that did not end well. A success leaves none.
CREATE TABLE tenure.attempt (
    job_id uuid NOT NULL,
    token bigint NOT NULL,
    attempt integer NOT NULL,
    worker text,
    claimed_at timestamptz,
    ended_at timestamptz NOT NULL,
    outcome text NOT NULL,
    failure_class text NOT NULL,
    error text,
    fingerprint text,
    run_at timestamptz,
    PRIMARY KEY (job_id, token),
    CONSTRAINT attempt_outcome_known CHECK (
        outcome IN ('retried', 'dead', 'failed', 'released', 'suspended', 'expired', 'cancelled')
    )
);

-- dead_letter: one row per death. No foreign key: it outlives the job.
CREATE TABLE tenure.dead_letter (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    job_id uuid NOT NULL,
    token bigint NOT NULL,
    queue text NOT NULL,
    profile text NOT NULL,
    kind text NOT NULL,
    state text NOT NULL,
    payload json,
    forbidden_keys text[],
    source_ref text,
    target_ref text,
    payload_ref text,
    idempotency_key text,
    actor text,
    run_id uuid,
    workflow_id uuid,
    attempts integer NOT NULL,
    crashes integer NOT NULL,
    failure_class text NOT NULL,
    final_error text NOT NULL,
    fingerprint text NOT NULL,
    moved_at timestamptz NOT NULL,
    moved_by text NOT NULL,
    triage text NOT NULL DEFAULT 'pending',
    triage_note text,
    triaged_at timestamptz,
    triaged_by text,
    CONSTRAINT dead_letter_once_per_death UNIQUE (job_id, token),
    CONSTRAINT dead_letter_state_known CHECK (state IN ('dead', 'failed')),
    CONSTRAINT dead_letter_error_not_blank CHECK (btrim(final_error) <> ''),
    CONSTRAINT dead_letter_mover_not_blank CHECK (btrim(moved_by) <> ''),
    CONSTRAINT dead_letter_triage_known CHECK (
        triage IN ('pending', 'acknowledged', 'manual_replay', 'escalated', 'closed')
    ),
    CONSTRAINT dead_letter_payload_guarded CHECK (
        forbidden_keys IS NULL OR payload IS NULL OR NOT tenure.has_key(payload::jsonb, forbidden_keys)
    )
);
CREATE INDEX dead_letter_triage_idx ON tenure.dead_letter (triage, moved_at);
CREATE INDEX dead_letter_fingerprint_idx ON tenure.dead_letter (fingerprint);

-- worker: one row per process start.
CREATE TABLE tenure.worker (
    id text PRIMARY KEY,
    hostname text NOT NULL,
    pid integer NOT NULL,
    queues text[] NOT NULL DEFAULT '{}',
    kinds text[] NOT NULL DEFAULT '{}',
    concurrency integer NOT NULL DEFAULT 1,
    version text NOT NULL DEFAULT '',
    executor_kind text NOT NULL DEFAULT 'external_worker',
    status text NOT NULL DEFAULT 'ok',
    ticks bigint NOT NULL DEFAULT 0,
    current_job_id uuid,
    info jsonb NOT NULL DEFAULT '{}',
    started_at timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL,
    CONSTRAINT worker_id_not_blank CHECK (btrim(id) <> ''),
    CONSTRAINT worker_executor_kind_known CHECK (
        executor_kind IN ('DOT', 'Agent', 'Hermes', 'Codex', 'PG_worker', 'external_worker', 'future_Kestra_adapter')
    ),
    CONSTRAINT worker_status_known CHECK (status IN ('ok', 'warn', 'error'))
) WITH (fillfactor = 50);
CREATE INDEX worker_seen_idx ON tenure.worker (last_seen_at);

-- waiter: who wants to be woken for which queue. An enqueue notifies only if somebody does.
-- An offer is a moment in offered_until: before it an enqueue may hand a job over to this worker, under a lease of lease_seconds (null: the
-- queue's). Every poll of an idle worker writes it anew, so no index knows it and there is room beside each row.
CREATE UNLOGGED TABLE tenure.waiter (
    queue text NOT NULL,
    worker text NOT NULL,
    offered_until timestamptz,
    lease_seconds double precision,
    PRIMARY KEY (queue, worker)
) WITH (fillfactor = 50);

-- lease: named leases, one row each; the term rises with every change of owner.
CREATE TABLE tenure.lease (
    name text PRIMARY KEY,
    owner text NOT NULL,
    term bigint NOT NULL,
    acquired_at timestamptz NOT NULL,
    until timestamptz NOT NULL
);

-- schedule: what is declared to run by the clock, and which tick was dealt with last. The row decides that a tick happens once.
CREATE TABLE tenure.schedule (
    name text PRIMARY KEY,
    spec json NOT NULL,
    last_tick timestamptz NOT NULL,
    paused_at timestamptz,
    paused_by text,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT schedule_name_not_blank CHECK (btrim(name) <> '' AND length(name) <= 200)
);

-- event: append-only; lifecycle rows only for queues that ask for them.
CREATE TABLE tenure.event (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    kind text NOT NULL,
    job_id uuid,
    queue text,
    data json NOT NULL DEFAULT '{}'
);
CREATE INDEX event_job_idx ON tenure.event (job_id, seq) WHERE job_id IS NOT NULL;

-- effect: the ledger of side effects. Its place is (job, step, name); args and key are fixed by the first record.
CREATE TABLE tenure.effect (
    job_id uuid NOT NULL,
    step text NOT NULL DEFAULT '',
    name text NOT NULL,
    state text NOT NULL,
    token bigint NOT NULL,
    key text NOT NULL,
    args json NOT NULL DEFAULT 'null',
    result json,
    error text,
    intended_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (job_id, step, name),
    CONSTRAINT effect_state_known CHECK (state IN ('intended', 'sent', 'confirmed', 'failed', 'unknown'))
);
CREATE INDEX effect_open_idx ON tenure.effect (state, job_id) WHERE state <> 'confirmed';

-- audit: what somebody with power did. Append-only.
CREATE TABLE tenure.audit (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    act text NOT NULL,
    subject text NOT NULL,
    reason text,
    detail json NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_subject_idx ON tenure.audit (subject, seq);

-- profile: the vocabularies that are installed here. `policy` is what a queue of the profile starts with, by columns of queue;
-- `words` what it calls each state; `settings` what operators may tune beside the policies.
CREATE TABLE tenure.profile (
    name text PRIMARY KEY,
    title text NOT NULL,
    policy json NOT NULL,
    words json NOT NULL,
    settings jsonb NOT NULL DEFAULT '{}',
    shows text[] NOT NULL DEFAULT '{}',
    checksum text NOT NULL,
    actor text NOT NULL,
    installed_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT profile_name_plain CHECK (name ~ '^[a-z][a-z0-9_]{0,62}$' AND name <> 'tenure')
);

-- tally: how many jobs ended well, and how many were cleaned, by day; so that nobody needs to count history. Maintenance brings it up
-- to tally_mark.counted_until; what ended later is few, and is counted where it lies. No job pays for it while it is alive.
CREATE TABLE tenure.tally (
    profile text NOT NULL,
    kind text NOT NULL,
    state text NOT NULL,
    is_cleaned boolean NOT NULL,
    day date NOT NULL,
    jobs bigint NOT NULL,
    attempts bigint NOT NULL,
    attempts_max integer NOT NULL,
    oldest_at timestamptz NOT NULL,
    newest_at timestamptz NOT NULL,
    PRIMARY KEY (profile, kind, state, is_cleaned, day)
);
-- next_until is counted as soon as every transaction below next_xid has ended: nobody can then commit an end before that moment.
CREATE TABLE tenure.tally_mark (
    is_only boolean PRIMARY KEY DEFAULT true,
    counted_until timestamptz NOT NULL DEFAULT '-infinity',
    next_until timestamptz,
    next_xid xid8,
    CONSTRAINT tally_mark_is_one CHECK (is_only)
);

-- workflow: what several jobs of agents work towards. A job names it in workflow_id.
CREATE TABLE tenure.workflow (
    id uuid PRIMARY KEY,
    profile text NOT NULL DEFAULT 'automechanica',
    kind text NOT NULL,
    state text NOT NULL DEFAULT 'running',
    step text,
    data json NOT NULL DEFAULT '{}',
    error text,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    finished_at timestamptz,
    CONSTRAINT workflow_state_known CHECK (state IN ('running', 'waiting', 'completed', 'failed', 'escalated', 'cancelled'))
);
CREATE INDEX workflow_state_idx ON tenure.workflow (profile, state, updated_at);

-- agent_event: what an agent did with a task, written with its completion. Append-only.
CREATE TABLE tenure.agent_event (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    agent text NOT NULL,
    kind text NOT NULL,
    job_id uuid,
    workflow_id uuid,
    data json NOT NULL DEFAULT '{}'
);
CREATE INDEX agent_event_job_idx ON tenure.agent_event (job_id);
CREATE INDEX agent_event_agent_idx ON tenure.agent_event (agent, at);

-- metric: what happened in a queue within a minute, counted once when it is over. latency_seconds is the sum over the completed jobs.
CREATE TABLE tenure.metric (
    minute timestamptz NOT NULL,
    queue text NOT NULL,
    profile text NOT NULL,
    created bigint NOT NULL DEFAULT 0,
    completed bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    latency_seconds double precision NOT NULL DEFAULT 0,
    heartbeat_delay_seconds double precision,
    PRIMARY KEY (minute, queue)
);
-- Minutes before counted_until are counted; those before next_until are as soon as every transaction below next_xid has ended.
CREATE TABLE tenure.metric_mark (
    is_only boolean PRIMARY KEY DEFAULT true,
    counted_until timestamptz,
    next_until timestamptz,
    next_xid xid8,
    CONSTRAINT metric_mark_is_one CHECK (is_only)
);

-- shown: every job with the stage it is in, a constant in each branch. A view that translates `stage` into a profile's words stays as
-- quick as the table: a filter on a word is pushed into the branches, and all but the ones it names fall away when it is planned.
-- Each branch repeats the predicate of the index that serves it, and has its order: the planner hands no order of its own down into a branch, but
-- merges branches that have the one it wants. So the oldest queued and the newest ended are read and not sorted, however many there are.
-- `of_profile` is what to filter by; `touched_at` is when a job ended, or when it was last changed. Nobody may read it but the owner.
-- serially: true. It keeps the planner from starting parallel workers for a page of rows, which takes longer than reading it.
CREATE OR REPLACE FUNCTION tenure.serially() RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL UNSAFE
AS $$ SELECT true $$;

-- parsed: a payload as jsonb. Its price makes the planner parse the few rows that it shows, after it has sorted the many.
CREATE OR REPLACE FUNCTION tenure.parsed(p_value json) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE COST 1000
AS $$ BEGIN RETURN p_value::pg_catalog.jsonb; END $$;

-- first_moment: before all others. Its price is paid once where an index is read from it, and for every row where a page of jobs is looked for
-- otherwise: so the views go by the indexes of people.sql, in their order, and neither sort nor read a heap where another profile's million may
-- come first. Nothing is paid for it when a job is written.
CREATE OR REPLACE FUNCTION tenure.first_moment() RETURNS timestamptz
LANGUAGE plpgsql STABLE PARALLEL SAFE COST 2000
AS $$ BEGIN RETURN '-infinity'::timestamptz; END $$;

CREATE VIEW tenure.shown AS
(
    SELECT 'due'::text AS stage, false AS is_cleaned, j.profile AS of_profile, j.updated_at AS touched_at, j.*
    FROM tenure.job AS j
    WHERE j.state = 'queued' AND j.is_due AND (j.failure_class IS NULL OR j.attempt = 0) AND j.created_at >= tenure.first_moment() AND tenure.serially()
    ORDER BY j.created_at
)
UNION ALL
(
    SELECT 'later', false, j.profile, j.updated_at, j.*
    FROM tenure.job AS j
    WHERE j.state = 'queued' AND NOT j.is_due AND (j.failure_class IS NULL OR j.attempt = 0) AND j.created_at >= tenure.first_moment()
    ORDER BY j.created_at
)
UNION ALL
(
    SELECT 'retry', false, j.profile, j.updated_at, j.*
    FROM tenure.job AS j
    WHERE j.state = 'queued' AND j.failure_class IS NOT NULL AND j.attempt > 0 AND j.created_at >= tenure.first_moment()
    ORDER BY j.created_at
)
UNION ALL
(
    SELECT 'waiting', false, j.profile, j.updated_at, j.*
    FROM tenure.job AS j
    WHERE j.state = 'waiting' AND j.created_at >= tenure.first_moment()
    ORDER BY j.created_at
)
UNION ALL
SELECT 'leased', false, j.profile, j.updated_at, j.*
FROM tenure.job AS j
WHERE j.state = 'leased'
UNION ALL
SELECT 'running', false, j.profile, j.updated_at, j.*
FROM tenure.job AS j
WHERE j.state = 'running'
UNION ALL
(
    SELECT 'succeeded', false, j.profile, j.finished_at, j.*
    FROM tenure.job AS j
    WHERE j.state = 'succeeded' AND j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.finished_at >= tenure.first_moment()
    ORDER BY j.finished_at DESC
)
UNION ALL
(
    SELECT 'failed', false, j.profile, j.finished_at, j.*
    FROM tenure.job AS j
    WHERE j.state = 'failed' AND j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.finished_at >= tenure.first_moment()
    ORDER BY j.finished_at DESC
)
UNION ALL
(
    SELECT 'dead', false, j.profile, j.finished_at, j.*
    FROM tenure.job AS j
    WHERE j.state = 'dead' AND j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.finished_at >= tenure.first_moment()
    ORDER BY j.finished_at DESC
)
UNION ALL
(
    SELECT 'cancelled', false, j.profile, j.finished_at, j.*
    FROM tenure.job AS j
    WHERE j.state = 'cancelled' AND j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.finished_at >= tenure.first_moment()
    ORDER BY j.finished_at DESC
)
UNION ALL
(
    SELECT 'succeeded', true, j.profile, j.finished_at, j.*
    FROM tenure.job AS j
    WHERE j.state = 'succeeded' AND j.cleaned_at IS NOT NULL AND j.finished_at >= tenure.first_moment()
    ORDER BY j.finished_at DESC
)
UNION ALL
(
    SELECT 'failed', true, j.profile, j.finished_at, j.*
    FROM tenure.job AS j
    WHERE j.state = 'failed' AND j.cleaned_at IS NOT NULL AND j.finished_at >= tenure.first_moment()
    ORDER BY j.finished_at DESC
)
UNION ALL
(
    SELECT 'dead', true, j.profile, j.finished_at, j.*
    FROM tenure.job AS j
    WHERE j.state = 'dead' AND j.cleaned_at IS NOT NULL AND j.finished_at >= tenure.first_moment()
    ORDER BY j.finished_at DESC
)
UNION ALL
(
    SELECT 'cancelled', true, j.profile, j.finished_at, j.*
    FROM tenure.job AS j
    WHERE j.state = 'cancelled' AND j.cleaned_at IS NOT NULL AND j.finished_at >= tenure.first_moment()
    ORDER BY j.finished_at DESC
);

INSERT INTO tenure.tally_mark DEFAULT VALUES;
INSERT INTO tenure.metric_mark DEFAULT VALUES;
INSERT INTO tenure.queue (name, created_at, updated_at) VALUES ('default', tenure.now(), tenure.now());

-- functions/time.sql

-- to_us, from_us: moments on the wire are whole microseconds since 1970, exact both ways.
-- 'infinity' is the largest bigint, '-infinity' the smallest. STABLE, not IMMUTABLE: only so can the planner inline them.

CREATE OR REPLACE FUNCTION tenure.to_us(p_at timestamptz) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_at = 'infinity'::timestamptz THEN 9223372036854775807
        WHEN p_at = '-infinity'::timestamptz THEN -9223372036854775808
        ELSE (EXTRACT(epoch FROM p_at) * 1000000)::bigint
    END
$$;

CREATE OR REPLACE FUNCTION tenure.from_us(p_us bigint) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_us = 9223372036854775807 THEN 'infinity'::timestamptz
        WHEN p_us = -9223372036854775808 THEN '-infinity'::timestamptz
        -- In two parts: an interval is multiplied as a double, which holds no more than 53 bits exactly.
        ELSE 'epoch'::timestamptz + p_us / 3600000000 * interval '1 hour' + p_us % 3600000000 * interval '1 microsecond'
    END
$$;

-- functions/show.sql

-- show_*: rows as the JSON that the reads answer with. Moments are microseconds; names are the model's, not the columns'.
-- as_uuid: an id from outside; what is no UUID names nothing, and is not an error.

CREATE OR REPLACE FUNCTION tenure.as_uuid(p_text text) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_text ~ '^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$' THEN p_text::uuid
    END
$$;

-- text_list: a JSON array of texts; null and [] both mean no restriction and give null.
CREATE OR REPLACE FUNCTION tenure.text_list(p_list json) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN pg_catalog.json_typeof(p_list) = 'array'
            THEN (SELECT pg_catalog.array_agg(e.value) FROM pg_catalog.json_array_elements_text(p_list) AS e)
    END
$$;

-- page_limit: how many rows a read may answer with.
CREATE OR REPLACE FUNCTION tenure.page_limit(p_request json) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := coalesce((p_request ->> 'limit')::bigint, 50);
BEGIN
    IF v_limit < 1 THEN
        RAISE EXCEPTION 'The limit must be at least 1, not %.', v_limit USING ERRCODE = 'TN007';
    END IF;
    RETURN v_limit;
END
$$;

CREATE OR REPLACE FUNCTION tenure.show_job(p_job tenure.job) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT pg_catalog.row_to_json(shown)
    FROM (
        SELECT
            (p_job).id,
            (p_job).queue,
            (p_job).kind,
            (p_job).state,
            (p_job).priority,
            (p_job).payload,
            tenure.to_us((p_job).run_at) AS run_at,
            (p_job).attempt,
            (p_job).max_attempts,
            (p_job).crashes,
            (p_job).token,
            tenure.to_us((p_job).created_at) AS created_at,
            tenure.to_us((p_job).updated_at) AS updated_at,
            (p_job).payload_hash,
            (p_job).lease_owner,
            tenure.to_us((p_job).lease_until) AS lease_until,
            (p_job).idempotency_key AS key,
            (p_job).affinity_key,
            (p_job).concurrency_key,
            tenure.to_us((p_job).cancel_requested_at) AS cancel_requested_at,
            (p_job).waiting_for,
            (p_job).source_ref,
            (p_job).target_ref,
            (p_job).payload_ref,
            (p_job).actor,
            (p_job).created_by_user_id,
            (p_job).requested_by_user_id,
            (p_job).tenant,
            (p_job).workflow_id,
            (p_job).parent_id,
            (p_job).run_id,
            (p_job).trace,
            (p_job).backoff,
            (p_job).progress,
            (p_job).result,
            (p_job).result_summary,
            (p_job).artifacts_path,
            (p_job).last_error,
            (p_job).failure_class,
            tenure.to_us((p_job).claimed_at) AS claimed_at,
            tenure.to_us((p_job).started_at) AS started_at,
            tenure.to_us((p_job).finished_at) AS finished_at,
            tenure.to_us((p_job).cleaned_at) AS cleaned_at
    ) AS shown
$$;

CREATE OR REPLACE FUNCTION tenure.show_dead_letter(p_letter tenure.dead_letter) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT pg_catalog.row_to_json(shown)
    FROM (
        SELECT
            (p_letter).id,
            (p_letter).job_id,
            (p_letter).queue,
            (p_letter).kind,
            (p_letter).state,
            (p_letter).payload,
            (p_letter).attempts,
            (p_letter).crashes,
            (p_letter).failure_class,
            (p_letter).final_error,
            (p_letter).fingerprint,
            tenure.to_us((p_letter).moved_at) AS moved_at,
            (p_letter).moved_by,
            (p_letter).triage,
            (p_letter).triage_note,
            tenure.to_us((p_letter).triaged_at) AS triaged_at,
            (p_letter).triaged_by,
            (p_letter).idempotency_key AS key,
            (p_letter).actor,
            (p_letter).run_id,
            (p_letter).workflow_id,
            (p_letter).source_ref,
            (p_letter).target_ref,
            (p_letter).payload_ref
    ) AS shown
$$;

-- In plpgsql, which keeps the plan: every worker asks for its queues each minute, and a function in SQL is planned anew each time.
CREATE OR REPLACE FUNCTION tenure.show_queue(p_queue tenure.queue) RETURNS json
LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN (SELECT pg_catalog.row_to_json(shown)
    FROM (
        SELECT
            (p_queue).name,
            (p_queue).profile,
            (p_queue).priority_order,
            (p_queue).priority_default,
            (p_queue).aging_seconds,
            (p_queue).start_on_claim,
            (p_queue).max_attempts,
            (p_queue).backoff_shape,
            (p_queue).backoff_base_seconds,
            (p_queue).backoff_power,
            (p_queue).backoff_factor,
            (p_queue).backoff_cap_seconds,
            (p_queue).backoff_jitter,
            (p_queue).lease_seconds,
            (p_queue).lease_max_seconds,
            (p_queue).key_scope,
            (p_queue).key_space,
            (p_queue).key_required,
            (p_queue).key_window_seconds,
            (p_queue).key_conflict,
            (p_queue).revive,
            (p_queue).on_unknown_kind,
            (p_queue).forbidden_keys,
            (p_queue).concurrency,
            (p_queue).concurrency_per_key,
            (p_queue).retain_seconds,
            (p_queue).events,
            tenure.to_us((p_queue).paused_at) AS paused_at,
            (p_queue).paused_by,
            tenure.to_us((p_queue).created_at) AS created_at,
            tenure.to_us((p_queue).updated_at) AS updated_at
    ) AS shown);
END
$$;

CREATE OR REPLACE FUNCTION tenure.show_effect(p_effect tenure.effect) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT pg_catalog.row_to_json(shown)
    FROM (
        SELECT
            (p_effect).job_id,
            (p_effect).step,
            (p_effect).name,
            (p_effect).state,
            (p_effect).token,
            (p_effect).key,
            (p_effect).args,
            (p_effect).result,
            (p_effect).error,
            tenure.to_us((p_effect).intended_at) AS intended_at,
            tenure.to_us((p_effect).updated_at) AS updated_at
    ) AS shown
$$;

-- functions/keys.sql

-- Keys and ranks: how a slot, a hash and a rank are made. The SQLite engine makes them by the same rules.
-- A slot gives the length of its kind, so that no kind and key can be read as another kind and key.

CREATE OR REPLACE FUNCTION tenure.slot_of(p_scope text, p_space text, p_profile text, p_kind text, p_key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_scope = 'none' THEN NULL
        ELSE left(p_scope, 1) || '|' || p_profile || chr(31)
            || CASE p_space WHEN 'kind' THEN length(p_kind) || chr(31) || p_kind ELSE '' END || chr(31) || p_key
    END
$$;

CREATE OR REPLACE FUNCTION tenure.payload_hash(p_payload json) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT encode(sha256(convert_to(p_payload::jsonb::text, 'UTF8')), 'hex') $$;

CREATE OR REPLACE FUNCTION tenure.rank_of(p_priority integer, p_order text, p_aging double precision, p_now timestamptz) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN p_aging IS NULL
        THEN CASE p_order WHEN 'high' THEN -p_priority::bigint ELSE p_priority::bigint END
        ELSE (CASE p_order WHEN 'high' THEN -p_priority ELSE p_priority END * p_aging * 1000000)::bigint + tenure.to_us(p_now)
    END
$$;

-- open_queue: the queue's row, once its gates let `p_act` pass. Refuses an unknown queue with what is known.
CREATE OR REPLACE FUNCTION tenure.open_queue(p_name text, p_act text) RETURNS tenure.queue
LANGUAGE plpgsql
AS $$
DECLARE
    v_queue tenure.queue;
    v_gate text;
BEGIN
    SELECT * INTO v_queue FROM tenure.queue AS q WHERE q.name = p_name;
    IF NOT FOUND THEN
        PERFORM tenure.refuse_unknown_queue(p_name);
    END IF;
    SELECT g.name INTO v_gate
    FROM tenure.gate AS g
    WHERE NOT g.is_open AND g.name IN ('master', v_queue.profile || '.master', 'queue:' || p_name)
    ORDER BY g.name
    LIMIT 1;
    IF FOUND THEN
        PERFORM tenure.refuse_gate(v_gate, p_act);
    END IF;
    RETURN v_queue;
END
$$;

CREATE OR REPLACE FUNCTION tenure.refuse_unknown_queue(p_name text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'Queue % does not exist.', quote_literal(p_name) USING
        ERRCODE = 'TN003',
        DETAIL = json_build_object('queue', p_name, 'known', (SELECT coalesce(json_agg(n.name), '[]')
            FROM (SELECT q.name FROM tenure.queue AS q ORDER BY q.name LIMIT 200) AS n))::text;
END
$$;

CREATE OR REPLACE FUNCTION tenure.refuse_gate(p_gate text, p_act text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'Gate % is closed, so % is refused and nothing was changed.', quote_literal(p_gate), p_act USING
        ERRCODE = 'TN002', DETAIL = json_build_object('gate', p_gate, 'act', p_act)::text;
END
$$;

CREATE OR REPLACE FUNCTION tenure.refuse_forbidden_keys(p_jobs json, p_queue tenure.queue) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_job uuid;
BEGIN
    SELECT g.i INTO v_job
    FROM json_to_recordset(p_jobs) AS g(i uuid, p json)
    WHERE tenure.has_key(g.p::jsonb, p_queue.forbidden_keys)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'Job %: its payload carries a key that queue % forbids (%). Nothing was enqueued. Pass a reference instead.',
            v_job, quote_literal(p_queue.name), array_to_string(p_queue.forbidden_keys, ', ') USING ERRCODE = 'TN006';
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION tenure.refuse_missing_keys(p_jobs json, p_queue tenure.queue) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_job uuid;
BEGIN
    SELECT g.i INTO v_job FROM json_to_recordset(p_jobs) AS g(i uuid, k text) WHERE coalesce(g.k, '') = '' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'Job %: queue % asks for an idempotency key and none was given. Nothing was enqueued. Pass key=….',
            v_job, quote_literal(p_queue.name) USING ERRCODE = 'TN005';
    END IF;
END
$$;

-- notify: wake whoever waits for the queue. A hint: coalesced per transaction, sent only if somebody wants it.
CREATE OR REPLACE FUNCTION tenure.notify(p_queue tenure.queue, p_when text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF (p_when = 'always' OR EXISTS (SELECT 1 FROM tenure.waiter AS w WHERE w.queue = p_queue.name))
        AND NOT EXISTS (
            SELECT 1 FROM tenure.gate AS g WHERE NOT g.is_open AND g.name IN ('notify', p_queue.profile || '.notify')
        )
    THEN
        PERFORM pg_notify('tenure', p_queue.name);
    END IF;
END
$$;

-- functions/acquire_lease.sql

-- acquire_lease: take a named lease if it is free or run out, or extend one's own. Answers who owns it now.
-- Invariant: one row decides. The term rises with every change of owner and never otherwise, so no term has two owners.
CREATE OR REPLACE FUNCTION tenure.acquire_lease(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_owner text := p_request ->> 'owner';
    v_seconds double precision := (p_request ->> 'seconds')::double precision;
    v_lease tenure.lease;
BEGIN
    IF v_seconds IS NULL OR NOT v_seconds > 0 OR v_seconds > 86400 * 366 THEN
        RAISE EXCEPTION 'A named lease lasts more than 0 seconds and at most a year, not % seconds.', v_seconds USING ERRCODE = 'TN007';
    END IF;
    IF coalesce(btrim(v_owner), '') = '' OR coalesce(btrim(p_request ->> 'name'), '') = '' THEN
        RAISE EXCEPTION 'A named lease needs a name and an owner.' USING ERRCODE = 'TN007';
    END IF;
    -- Most who ask find it taken. They look and go: no lock, nothing written, nothing synced.
    SELECT * INTO v_lease FROM tenure.lease AS l WHERE l.name = p_request ->> 'name' AND l.owner <> v_owner AND l.until > v_now;
    IF NOT FOUND THEN
        INSERT INTO tenure.lease AS l (name, owner, term, acquired_at, until)
        VALUES (p_request ->> 'name', v_owner, 1, v_now, v_now + v_seconds * interval '1 second')
        ON CONFLICT (name) DO UPDATE
        SET owner = excluded.owner,
            term = l.term + CASE WHEN l.owner = excluded.owner THEN 0 ELSE 1 END,
            acquired_at = CASE WHEN l.owner = excluded.owner THEN l.acquired_at ELSE excluded.acquired_at END,
            until = excluded.until
        WHERE l.owner = excluded.owner OR l.until <= v_now;
        SELECT * INTO STRICT v_lease FROM tenure.lease AS l WHERE l.name = p_request ->> 'name';
    END IF;
    RETURN json_build_object(
        'name', v_lease.name, 'owner', v_lease.owner, 'term', v_lease.term, 'until', tenure.to_us(v_lease.until),
        'acquired', v_lease.owner = v_owner
    );
END
$$;

-- functions/append_events.sql

-- append_events: {"job_id", "token", "events": [{"kind", "data", "job_id"}]} → whether they were written.
-- Fenced: the job's row is locked while its token and lease are judged, so a late worker writes nothing.
CREATE OR REPLACE FUNCTION tenure.append_events(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_job_id uuid := tenure.as_uuid(p_request ->> 'job_id');
    v_queue text := tenure.held_queue(v_job_id, (p_request ->> 'token')::bigint, v_now);
BEGIN
    IF v_queue IS NULL THEN
        RETURN to_json(false);
    END IF;
    INSERT INTO tenure.event (at, kind, job_id, queue, data)
    SELECT v_now, e.kind, coalesce(tenure.as_uuid(e.job_id), v_job_id), v_queue, coalesce(e.data, '{}')
    FROM json_to_recordset(p_request -> 'events') AS e(kind text, job_id text, data json);
    RETURN to_json(true);
END
$$;

-- tell: what happened to jobs that just moved, for those queues that ask for it. Runs after the move, so it tells where each stands now.
CREATE OR REPLACE FUNCTION tenure.tell(p_kind text, p_ids uuid[], p_now timestamptz) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO tenure.event (at, kind, job_id, queue, data)
    SELECT p_now, p_kind, j.id, j.queue, json_build_object(
        'state', j.state, 'attempt', j.attempt, 'token', j.token, 'kind', j.kind, 'worker', j.lease_owner,
        'class', CASE WHEN p_kind IN ('retried', 'reclaimed', 'failed', 'dead', 'cancelled') THEN j.failure_class END)
    FROM unnest(p_ids) WITH ORDINALITY AS m(id, nth)
    JOIN tenure.job AS j ON j.id = m.id
    JOIN tenure.queue AS q ON q.name = j.queue AND q.events
    ORDER BY m.nth
$$;

-- held_queue: the queue of a job that is held under this very token; null if the lease is lost. Keeps the row from changing
-- until the transaction ends.
CREATE OR REPLACE FUNCTION tenure.held_queue(p_job_id uuid, p_token bigint, p_now timestamptz) RETURNS text
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT j.queue
    FROM tenure.job AS j
    WHERE j.id = p_job_id
        AND j.token = p_token
        AND j.state IN ('leased', 'running')
        AND j.lease_until > tenure.expiry_cutoff(p_now)
    FOR SHARE
$$;

-- functions/cancel.sql

-- cancel: queued and waiting jobs at once, held ones by request: their worker is told and settles them.
-- After 'cancelled' the job never starts; after 'requested' it never succeeds.
-- Takes {"job_ids", "actor", "reason"}; answers [id, cancelled|requested|refused, state] for each, in order of id.
CREATE OR REPLACE FUNCTION tenure.cancel(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_id uuid;
    v_job tenure.job;
    v_answer text;
    v_answers json[] := '{}';
BEGIN
    FOR v_id IN SELECT DISTINCT g.id::uuid FROM json_array_elements_text(p_request -> 'job_ids') AS g(id) ORDER BY 1 LOOP
        SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = v_id FOR UPDATE;
        v_answer := CASE
            WHEN v_job.state IN ('queued', 'waiting') THEN 'cancelled'
            WHEN v_job.state IN ('leased', 'running') THEN 'requested'
            ELSE 'refused'
        END;
        IF v_job.state IN ('queued', 'waiting') THEN
            UPDATE tenure.job AS j
            SET state = 'cancelled',
                waiting_for = NULL,
                cancel_requested_at = v_now,
                failure_class = 'cancelled',
                finished_at = v_now,
                dedup_slot = CASE WHEN left(j.dedup_slot, 1) = 'a' THEN NULL ELSE j.dedup_slot END,
                updated_at = v_now
            WHERE j.id = v_id;
        ELSIF v_job.state IN ('leased', 'running') THEN
            UPDATE tenure.job AS j SET cancel_requested_at = coalesce(j.cancel_requested_at, v_now), updated_at = v_now WHERE j.id = v_id;
            PERFORM pg_notify('tenure', 'cancel:' || v_job.lease_owner);
        END IF;
        IF v_answer <> 'refused' THEN
            INSERT INTO tenure.audit (at, actor, act, subject, reason, detail)
            VALUES (v_now, p_request ->> 'actor', 'cancel', v_id::text, p_request ->> 'reason', json_build_object('state', v_job.state));
            PERFORM tenure.tell(CASE v_answer WHEN 'requested' THEN 'cancel_requested' ELSE 'cancelled' END, ARRAY[v_id], v_now);
        END IF;
        v_answers := v_answers || json_build_array(v_id, v_answer, CASE v_answer WHEN 'cancelled' THEN 'cancelled' ELSE v_job.state END);
    END LOOP;
    RETURN array_to_json(v_answers);
END
$$;

-- wake: waiting → queued, due at once. Takes {"job_ids"} or {"waiting_for"}; answers the ids that were woken.
CREATE OR REPLACE FUNCTION tenure.wake(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_at tid[];
    v_woken json;
    v_ids uuid[];
    v_queue tenure.queue;
BEGIN
    SELECT array_agg(s.at) INTO v_at FROM (
        SELECT j.ctid AS at
        FROM tenure.job AS j
        WHERE j.state = 'waiting' AND (
            j.waiting_for = p_request ->> 'waiting_for'
            OR j.id IN (SELECT g.id::uuid FROM json_array_elements_text(coalesce(p_request -> 'job_ids', '[]')) AS g(id)))
        ORDER BY j.id
        FOR UPDATE
    ) AS s;
    WITH woken AS (
        UPDATE tenure.job AS j
        SET state = 'queued',
            waiting_for = NULL,
            run_at = v_now,
            is_due = true,
            updated_at = v_now
        WHERE j.ctid = ANY (v_at)
        RETURNING j.id
    )
    SELECT coalesce(json_agg(w.id), '[]'), array_agg(w.id ORDER BY w.id) INTO v_woken, v_ids FROM woken AS w;
    IF v_ids IS NOT NULL THEN
        PERFORM tenure.tell('woken', v_ids, v_now);
    END IF;
    FOR v_queue IN
        SELECT q.* FROM tenure.queue AS q
        WHERE q.name IN (SELECT j.queue FROM tenure.job AS j WHERE j.id IN (SELECT g.id::uuid FROM json_array_elements_text(v_woken) AS g(id)))
    LOOP
        PERFORM tenure.notify(v_queue, NULL);
    END LOOP;
    RETURN v_woken;
END
$$;

-- functions/claim_parts.sql

-- The smaller steps of a claim.

-- open_queues: the rows of the queues that may be claimed from now, in the order asked for. Paused ones are left out, and so are
-- those whose own gate is closed, unless that leaves none. Refuses unknown queues, closed gates, and a lease out of bounds.
CREATE OR REPLACE FUNCTION tenure.open_queues(p_names text[], p_lease double precision, p_is_loop boolean) RETURNS tenure.queue[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_queues tenure.queue[] := '{}';
    v_queue tenure.queue;
    v_name text;
    v_closed text[];
    v_shut text;
BEGIN
    SELECT array_agg(g.name) INTO v_closed FROM tenure.gate AS g WHERE NOT g.is_open;
    FOREACH v_name IN ARRAY p_names LOOP
        SELECT * INTO v_queue FROM tenure.queue AS q WHERE q.name = v_name;
        IF NOT FOUND THEN
            PERFORM tenure.refuse_unknown_queue(v_name);
        END IF;
        IF p_lease IS NOT NULL AND (p_lease <= 0 OR p_lease > v_queue.lease_max_seconds) THEN
            RAISE EXCEPTION 'lease_seconds is %; it must be positive and at most % in queue %.',
                p_lease, v_queue.lease_max_seconds, quote_literal(v_name) USING ERRCODE = 'TN007';
        END IF;
        IF v_closed IS NOT NULL THEN
            SELECT c.name INTO v_shut
            FROM unnest(v_closed) AS c(name)
            WHERE c.name IN ('master', v_queue.profile || '.master')
                OR p_is_loop AND c.name IN ('worker', v_queue.profile || '.worker')
            ORDER BY c.name
            LIMIT 1;
            IF FOUND THEN
                PERFORM tenure.refuse_gate(v_shut, 'claim');
            END IF;
            IF 'queue:' || v_name = ANY (v_closed) THEN
                v_shut := 'queue:' || v_name;
                CONTINUE;
            END IF;
        END IF;
        IF v_queue.paused_at IS NULL THEN
            v_queues := v_queues || v_queue;
        END IF;
    END LOOP;
    IF v_shut IS NOT NULL AND cardinality(v_queues) = 0 THEN
        PERFORM tenure.refuse_gate(v_shut, 'claim');
    END IF;
    RETURN v_queues;
END
$$;

-- share_out: how many jobs each of several queues should give, if the next p_limit were taken by rank over all of them.
-- Looks without locking; the claim then takes that many from each, skipping what others hold.
CREATE OR REPLACE FUNCTION tenure.share_out(p_queues tenure.queue[], p_limit integer, p_kinds text[], p_affinity text[]) RETURNS integer[]
LANGUAGE sql STABLE
AS $$
    WITH best AS (
        SELECT q.nth
        FROM unnest(p_queues) WITH ORDINALITY AS q(
            name, profile, priority_order, priority_default, aging_seconds, start_on_claim, max_attempts, backoff_shape,
            backoff_base_seconds, backoff_power, backoff_factor, backoff_cap_seconds, backoff_jitter, lease_seconds,
            lease_max_seconds, key_scope, key_space, key_required, key_window_seconds, key_conflict, revive, on_unknown_kind,
            forbidden_keys, concurrency, concurrency_per_key, retain_seconds, events, paused_at, paused_by, created_at, updated_at, nth)
        CROSS JOIN LATERAL (
            SELECT j.rank, j.run_at, j.id
            FROM tenure.job AS j
            WHERE j.queue = q.name AND j.state = 'queued' AND j.is_due
                AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
                AND (p_affinity IS NULL OR j.affinity_key = ANY (p_affinity)
                    OR (j.affinity_key IS NULL AND array_position(p_affinity, NULL) IS NOT NULL))
            ORDER BY j.rank, j.run_at, j.id
            LIMIT p_limit
        ) AS head
        ORDER BY head.rank, head.run_at, head.id
        LIMIT p_limit
    )
    SELECT array_agg((SELECT count(*)::integer FROM best AS b WHERE b.nth = n.nth) ORDER BY n.nth)
    FROM generate_series(1, cardinality(p_queues)) AS n(nth)
$$;

-- promote_due: make jobs claimable whose time has come; suspended ones with a time to wake among them. Bounded.
-- p_after: everything before it was looked at already. Answers up to where everything has been looked at now.
CREATE OR REPLACE FUNCTION tenure.promote_due(p_now timestamptz, p_after timestamptz, p_limit integer) RETURNS timestamptz
LANGUAGE plpgsql
AS $$
DECLARE
    v_at tid[];
    v_last timestamptz;
    v_woken uuid[];
    v_queues text[];
BEGIN
    SELECT array_agg(d.at), max(d.run_at), array_agg(d.id) FILTER (WHERE d.state = 'waiting'), array_agg(DISTINCT d.queue)
    INTO v_at, v_last, v_woken, v_queues
    FROM (
        SELECT j.ctid AS at, j.run_at, j.id, j.state, j.queue
        FROM tenure.job AS j
        WHERE NOT j.is_due AND j.state IN ('queued', 'waiting')
            AND j.run_at <= p_now AND j.run_at >= coalesce(p_after, '-infinity')
        ORDER BY j.run_at
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ) AS d;
    IF v_at IS NOT NULL THEN
        UPDATE tenure.job AS j
        SET is_due = true,
            state = 'queued',
            waiting_for = NULL,
            updated_at = p_now
        WHERE j.ctid = ANY (v_at);
        IF v_woken IS NOT NULL THEN
            PERFORM tenure.tell('woken', v_woken, p_now);
        END IF;
        -- Whoever looked first takes what it has room for. The rest of the fleet would see the others only at its next poll.
        PERFORM tenure.notify(q, NULL) FROM tenure.queue AS q WHERE q.name = ANY (v_queues);
    END IF;
    RETURN CASE WHEN cardinality(v_at) >= p_limit THEN v_last - interval '1 microsecond' ELSE p_now END;
END
$$;

-- set_waiter: whether the worker wants to be woken when jobs arrive in these queues.
CREATE OR REPLACE FUNCTION tenure.set_waiter(p_worker text, p_queues json, p_wants boolean) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_wants THEN
        INSERT INTO tenure.waiter (queue, worker)
        SELECT q.name, p_worker FROM json_array_elements_text(p_queues) AS q(name)
        ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM tenure.waiter AS w
        WHERE w.worker = p_worker AND w.queue IN (SELECT q.name FROM json_array_elements_text(p_queues) AS q(name));
    END IF;
END
$$;

-- regrant: jobs leased to this worker that it does not know of, because the reply to its claim was lost, or the word of an enqueue that had
-- handed one over. Same token, lease as it is; and how many seconds ago the oldest was granted.
CREATE OR REPLACE FUNCTION tenure.regrant(
    p_worker text, p_held json, p_limit integer, p_now timestamptz, OUT lines json[], OUT age double precision
)
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(array_agg(json_build_array(h.queue, tenure.to_us(h.lease_until), h.state = 'running', json_build_array(
        json_build_array(h.id, h.kind, h.token, h.attempt, h.max_attempts, h.payload::text, h.priority, h.crashes, h.rank, tenure.to_us(h.run_at), NULL)))), '{}'),
        date_part('epoch', p_now - min(h.claimed_at))
    FROM (
        SELECT j.*
        FROM tenure.job AS j
        WHERE j.state IN ('leased', 'running') AND j.lease_owner = p_worker
            AND j.lease_until > tenure.expiry_cutoff(p_now)
            AND NOT j.id IN (SELECT k.id::uuid FROM json_array_elements_text(p_held) AS k(id))
        ORDER BY j.rank, j.run_at, j.id
        LIMIT p_limit
    ) AS h
$$;

-- functions/claim_queue.sql

-- claim_queue: grant up to p_limit due jobs of one queue. Answers the grants as JSON lines, and how many there are.
--
-- Invariants: a row is granted by whoever locks it first, others skip it; token rises here and nowhere else; the attempt is
-- counted now, so a job that kills its worker spends its budget all the same.
-- Rows are found by (queue, rank, run_at, id), in that order, on an index that holds nothing but claimable rows.
-- With a mark (rank, run_at, id) the look is at that rank only and starts behind it: entries of that rank which somebody's long
-- transaction keeps alive are then not walked again and again. Without one it is a full look.
CREATE OR REPLACE FUNCTION tenure.claim_queue(
    p_queue tenure.queue, p_worker text, p_limit integer, p_kinds text[], p_affinity text[], p_lease double precision,
    p_now timestamptz, p_mark_rank bigint, p_mark_run_at timestamptz, p_mark_id uuid,
    OUT grants json, OUT granted integer, OUT marks json
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_until timestamptz := p_now + coalesce(p_lease, p_queue.lease_seconds) * interval '1 second';
    v_state text := CASE WHEN p_queue.start_on_claim THEN 'running' ELSE 'leased' END;
    v_at tid[];
    v_ids uuid[];
BEGIN
    granted := 0;
    v_at := tenure.pick(p_queue, p_limit, p_kinds, p_affinity, p_mark_rank, p_mark_run_at, p_mark_id);
    IF v_at IS NULL THEN
        RETURN;
    END IF;
    WITH taken AS MATERIALIZED (
        UPDATE tenure.job AS j
        SET state = v_state,
            token = j.token + 1,
            attempt = j.attempt + 1,
            lease_owner = p_worker,
            lease_until = v_until,
            claimed_at = p_now,
            started_at = CASE WHEN v_state = 'running' THEN coalesce(j.started_at, p_now) ELSE j.started_at END,
            updated_at = p_now
        WHERE j.ctid = ANY (v_at)
        RETURNING
            j.rank, j.run_at, j.id,
            json_build_array(
                j.id, j.kind, j.token, j.attempt, j.max_attempts, j.payload::text, j.priority, j.crashes, j.rank,
                (date_part('epoch', j.run_at) * 1000000)::bigint,  -- only for order; exact until the year 2255, and far cheaper than to_us
                CASE WHEN NOT (
                    ROW(j.idempotency_key, j.affinity_key, j.concurrency_key, j.source_ref, j.target_ref, j.payload_ref, j.actor,
                        j.created_by_user_id, j.requested_by_user_id, j.tenant, j.workflow_id, j.parent_id, j.run_id, j.trace,
                        j.artifacts_path, j.progress, j.cancel_requested_at) IS NULL)
                THEN json_strip_nulls(json_build_object(
                    'key', j.idempotency_key, 'affinity_key', j.affinity_key, 'concurrency_key', j.concurrency_key,
                    'source_ref', j.source_ref, 'target_ref', j.target_ref, 'payload_ref', j.payload_ref, 'actor', j.actor,
                    'created_by_user_id', j.created_by_user_id, 'requested_by_user_id', j.requested_by_user_id,
                    'tenant', j.tenant, 'workflow_id', j.workflow_id, 'parent_id', j.parent_id, 'run_id', j.run_id,
                    'trace', j.trace, 'artifacts_path', j.artifacts_path, 'progress', j.progress))
                END
            ) AS line
    )
    SELECT
        json_agg(t.line ORDER BY t.rank, t.run_at, t.id),
        count(*),
        CASE WHEN p_limit >= 50 THEN (
            SELECT json_agg(json_build_array(m.rank, tenure.to_us(m.run_at), m.id))
            FROM (SELECT DISTINCT ON (l.rank) l.rank, l.run_at, l.id FROM taken AS l ORDER BY l.rank, l.run_at DESC, l.id DESC) AS m
        ) END
    INTO grants, granted, marks
    FROM taken AS t;
    IF p_queue.events THEN
        v_ids := ARRAY(SELECT (g.value ->> 0)::uuid FROM json_array_elements(grants) AS g);
        PERFORM tenure.tell('claimed', v_ids, p_now);
        IF p_queue.start_on_claim THEN
            PERFORM tenure.tell('started', v_ids, p_now);
        END IF;
    END IF;
END
$$;

-- functions/clone.sql

-- clone: {"job_ids": {old id: new id, …}, "actor", "reason"} → [[old id, new id, id of the job that holds the key or null], …].
--
-- A copy takes what was asked for, not what happened: payload, policy of the queue as it is now, references. Where a key counts only
-- while its job is active, the copy takes it too, and a job that holds it makes the copy a duplicate; where a key counts longer it
-- stays with the original. All or none.
CREATE OR REPLACE FUNCTION tenure.clone(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_pair record;
    v_job tenure.job;
    v_holder uuid;
    v_answers json[] := '{}';
BEGIN
    FOR v_pair IN SELECT e.key AS old_id, e.value AS new_id FROM json_each_text(p_request -> 'job_ids') AS e ORDER BY e.key COLLATE "C" LOOP
        SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = tenure.as_uuid(v_pair.old_id) FOR SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'There is no job %, so nothing was cloned.', v_pair.old_id USING ERRCODE = 'TN009';
        ELSIF v_job.finished_at IS NULL THEN
            RAISE EXCEPTION 'Job % is %; only a job that has ended can be cloned. Nothing was cloned.', v_pair.old_id, v_job.state
                USING ERRCODE = 'TN008';
        ELSIF v_job.cleaned_at IS NOT NULL THEN
            RAISE EXCEPTION 'Job % was pruned: its payload is gone, so it cannot be cloned. Nothing was cloned.', v_pair.old_id
                USING ERRCODE = 'TN008';
        END IF;
        v_holder := tenure.copy_job(v_job, v_pair.new_id::uuid, v_now);
        PERFORM tenure.write_audit(
            v_now, p_request ->> 'actor', 'clone', v_pair.old_id, p_request ->> 'reason',
            json_build_object('clone', v_pair.new_id, 'duplicate_of', v_holder)
        );
        v_answers := v_answers || json_build_array(v_pair.old_id, v_pair.new_id, v_holder);
    END LOOP;
    RETURN array_to_json(v_answers);
END
$$;

-- copy_job: insert the copy under its new id. Answers null, or the job that holds its key; a copy that is already there was made by
-- an earlier try of the same request.
CREATE OR REPLACE FUNCTION tenure.copy_job(p_job tenure.job, p_new_id uuid, p_now timestamptz) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_queue tenure.queue;
    v_slot text;
    v_holder uuid;
BEGIN
    SELECT * INTO STRICT v_queue FROM tenure.queue AS q WHERE q.name = p_job.queue;
    IF v_queue.key_scope = 'active' AND p_job.idempotency_key IS NOT NULL THEN
        v_slot := tenure.slot_of(v_queue.key_scope, v_queue.key_space, v_queue.profile, p_job.kind, p_job.idempotency_key);
    END IF;
    LOOP
        INSERT INTO tenure.job (
            id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile,
            payload, payload_hash, idempotency_key, dedup_slot, forbidden_keys,
            affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor, created_by_user_id,
            requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, backoff
        )
        VALUES (
            p_new_id, tenure.rank_of(p_job.priority, v_queue.priority_order, v_queue.aging_seconds, p_now), p_now, p_now, p_now,
            p_job.priority, p_job.max_attempts, true, p_job.queue, p_job.kind, v_queue.profile,
            p_job.payload, p_job.payload_hash, p_job.idempotency_key, v_slot, v_queue.forbidden_keys,
            p_job.affinity_key, p_job.concurrency_key, p_job.source_ref, p_job.target_ref, p_job.payload_ref, p_job.actor,
            p_job.created_by_user_id, p_job.requested_by_user_id, p_job.tenant, p_job.workflow_id, p_job.id, p_job.run_id,
            p_job.trace, p_job.backoff
        )
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            EXIT;
        END IF;
        IF EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.id = p_new_id) THEN
            RETURN NULL;
        END IF;
        SELECT j.id INTO v_holder FROM tenure.job AS j WHERE j.dedup_slot = v_slot;
        IF FOUND THEN
            RETURN v_holder;
        END IF;
        -- The holder ended between the two looks: its key is free again.
    END LOOP;
    IF v_queue.events THEN
        PERFORM tenure.tell('queued', ARRAY[p_new_id], p_now);
    END IF;
    PERFORM tenure.notify(v_queue, NULL);
    RETURN NULL;
END
$$;

-- functions/count_jobs.sql

-- count_jobs: jobs by queue, kind and state, exact at the moment of asking.
CREATE OR REPLACE FUNCTION tenure.count_jobs(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_states text[] := tenure.text_list(p_request -> 'states');
BEGIN
    RETURN (
        SELECT coalesce(json_agg(row_to_json(c) ORDER BY c.queue, c.kind, c.state), '[]')
        FROM (
            SELECT j.queue, j.kind, j.state, count(*) AS jobs, tenure.to_us(min(j.created_at)) AS oldest_at
            FROM tenure.job AS j
            WHERE (v_queues IS NULL OR j.queue = ANY (v_queues))
                AND (v_states IS NULL OR j.state = ANY (v_states))
            GROUP BY j.queue, j.kind, j.state
        ) AS c
    );
END
$$;

-- functions/enqueue.sql

-- enqueue: put a batch of jobs in state queued, in one transaction (the caller's, if it has one).
--
-- Takes {"groups": [{"queue", "kind", "jobs": [{"i": id, "p": payload, …}]}], "create": {name: policy}, "notify": "always"}.
-- Answers null if every job is new, else {"duplicates": [[id, id of the job that holds the key], …]}.
--
-- Invariants: the unique index on dedup_slot decides who holds a key, never a look beforehand; a job whose own id is already
-- there was enqueued by an earlier try of this very request and counts as created; slots are taken in one order, so that
-- two batches with the same keys cannot wait for each other in a circle.
CREATE OR REPLACE FUNCTION tenure.enqueue(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_group json;
    v_found json;
    v_duplicates json[] := '{}';
BEGIN
    IF p_request -> 'create' IS NOT NULL THEN
        PERFORM tenure.set_queues(json_build_object('policies', p_request -> 'create', 'actor', 'enqueue', 'only_new', true));
    END IF;
    FOR v_group IN SELECT g.value FROM json_array_elements(p_request -> 'groups') AS g LOOP
        v_found := tenure.enqueue_group(v_group ->> 'queue', v_group ->> 'kind', json_array_length(v_group -> 'jobs'), v_group -> 'jobs',
            p_request ->> 'notify');
        IF v_found IS NOT NULL THEN
            v_duplicates := v_duplicates || ARRAY(SELECT d.value FROM json_array_elements(v_found) AS d);
        END IF;
    END LOOP;
    IF cardinality(v_duplicates) = 0 THEN
        RETURN NULL;
    END IF;
    RETURN json_build_object('duplicates', array_to_json(v_duplicates));
END
$$;

-- functions/enqueue_group.sql

-- enqueue_group: the jobs of one queue and kind, p_count of them, as enqueue takes them. A door of its own for the common case: the jobs
-- are then read once, and nothing around them. Answers null if all are new, else [[id, id of the holder], …] for those that are not.
-- p_is_plain promises that no job has a key, a time or anything rare: then the statement is short, and so is getting it ready.
CREATE OR REPLACE FUNCTION tenure.enqueue_group(
    p_queue text, p_kind text, p_count integer, p_jobs json, p_notify text DEFAULT NULL, p_is_plain boolean DEFAULT false
) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    RETURN tenure.put_group(tenure.open_queue(p_queue, 'enqueue'), p_kind, p_count, p_jobs, p_notify, p_is_plain);
END
$$;

-- put_group: enqueue_group behind the gates. The follow-ups of a completed job come straight here: a settle is never refused by a gate.
CREATE OR REPLACE FUNCTION tenure.put_group(
    p_queue tenure.queue, p_kind text, p_count integer, p_jobs json, p_notify text, p_is_plain boolean
) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    -- rank = step × priority + offset; with aging, a step of priority is worth some time, and the offset is the time.
    v_step bigint := CASE p_queue.priority_order WHEN 'high' THEN -1 ELSE 1 END
        * CASE WHEN p_queue.aging_seconds IS NULL THEN 1 ELSE (p_queue.aging_seconds * 1000000)::bigint END;
    v_offset bigint := CASE WHEN p_queue.aging_seconds IS NULL THEN 0 ELSE tenure.to_us(v_now) END;
    v_inserted integer;
    v_ids uuid[];
    v_any_due boolean;
BEGIN
    IF p_queue.forbidden_keys IS NOT NULL THEN
        PERFORM tenure.refuse_forbidden_keys(p_jobs, p_queue);
    END IF;
    IF p_queue.key_required THEN
        PERFORM tenure.refuse_missing_keys(p_jobs, p_queue);
    END IF;
    IF p_is_plain AND NOT p_queue.events THEN
        INSERT INTO tenure.job (
            id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile, payload, forbidden_keys
        )
        SELECT
            g.i, v_step * coalesce(g.r, p_queue.priority_default) + v_offset, v_now, v_now, v_now,
            coalesce(g.r, p_queue.priority_default), coalesce(g.m, p_queue.max_attempts), true,
            p_queue.name, p_kind, p_queue.profile, coalesce(g.p, 'null'), p_queue.forbidden_keys
        FROM json_to_recordset(p_jobs) AS g(i uuid, p json, r integer, m integer)
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS v_inserted = ROW_COUNT;
        IF v_inserted > 0 THEN
            PERFORM tenure.notify(p_queue, p_notify);
        END IF;
        RETURN NULL;  -- without keys only an id can be taken: by an earlier try of this very request
    END IF;

    SELECT i.ids, i.any_due INTO v_ids, v_any_due
    FROM tenure.insert_jobs(p_queue, p_kind, p_jobs, v_step, v_offset, v_now) AS i;
    IF p_queue.events AND v_ids IS NOT NULL THEN
        PERFORM tenure.tell('queued', v_ids, v_now);
    END IF;
    IF v_any_due THEN
        PERFORM tenure.notify(p_queue, p_notify);
    END IF;
    IF coalesce(cardinality(v_ids), 0) = p_count THEN
        RETURN NULL;
    END IF;
    RETURN tenure.find_duplicates(p_jobs, v_ids, p_queue, p_kind, v_now, p_notify);
END
$$;

-- insert_jobs: the rows of jobs that may have keys, times and rare columns. Slots are taken in one order, so that two batches with the same
-- keys cannot wait for each other in a circle. Answers the ids that are new.
CREATE OR REPLACE FUNCTION tenure.insert_jobs(
    p_queue tenure.queue, p_kind text, p_jobs json, p_step bigint, p_offset bigint, p_now timestamptz, OUT ids uuid[], OUT any_due boolean
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_prefix text := tenure.slot_of(p_queue.key_scope, p_queue.key_space, p_queue.profile, p_kind, '');
BEGIN
    WITH created AS (
        INSERT INTO tenure.job (
            id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile,
            payload, payload_hash, idempotency_key, dedup_slot, forbidden_keys,
            affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor, created_by_user_id,
            requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, backoff, artifacts_path
        )
        SELECT
            g.i, p_step * g.priority + p_offset, g.run_at, p_now, p_now, g.priority, coalesce(g.m, p_queue.max_attempts),
            g.run_at <= p_now, p_queue.name, p_kind, p_queue.profile,
            g.payload, CASE WHEN g.k IS NOT NULL THEN tenure.payload_hash(g.payload) END, g.k, v_prefix || g.k, p_queue.forbidden_keys,
            g.x ->> 'affinity_key', g.x ->> 'concurrency_key', g.x ->> 'source_ref', g.x ->> 'target_ref', g.x ->> 'payload_ref',
            g.x ->> 'actor', (g.x ->> 'created_by_user_id')::uuid, (g.x ->> 'requested_by_user_id')::uuid, g.x ->> 'tenant',
            (g.x ->> 'workflow_id')::uuid, (g.x ->> 'parent_id')::uuid, (g.x ->> 'run_id')::uuid, g.x ->> 'trace',
            g.x -> 'backoff', g.x ->> 'artifacts_path'
        FROM (
            SELECT r.i, r.k, r.m, r.x, coalesce(r.p, 'null') AS payload, coalesce(r.r, p_queue.priority_default) AS priority,
                CASE
                    WHEN r.d IS NOT NULL THEN p_now + r.d * interval '1 second'
                    WHEN r.a IS NOT NULL THEN tenure.from_us(r.a)
                    ELSE p_now
                END AS run_at
            FROM json_to_recordset(p_jobs) AS r(i uuid, p json, r integer, k text, m integer, a bigint, d double precision, x json)
            OFFSET 0
        ) AS g
        ORDER BY g.k, g.i
        ON CONFLICT DO NOTHING
        RETURNING id, is_due
    )
    SELECT array_agg(c.id), bool_or(c.is_due) INTO ids, any_due FROM created AS c;
END
$$;

-- functions/enqueue_plain.sql

-- enqueue_one and enqueue_plain: jobs with nothing but a payload, and perhaps a priority and a number of attempts; null stands for what the
-- queue gives. The quick doors for the common case: no JSON around the JSON, so every payload is read once, and two short statements.
-- Both answer null: without keys only an id can be taken, and whoever has it is an earlier try of this very request.
-- What is out of the ordinary (a closed gate, an unknown queue, a policy that looks into the jobs) is left to enqueue_group.
-- Gates are looked at beside the queue and not in its WHERE, where a condition without a column of the row is a step of its own in the plan.
-- p_hands_over: if a worker has offered to take a job, this one may be granted to it; see hand_to_waiter. Only for a call that commits by
-- itself.

CREATE OR REPLACE FUNCTION tenure.enqueue_one(
    p_queue text, p_kind text, p_id uuid, p_payload json, p_priority integer DEFAULT NULL, p_max_attempts integer DEFAULT NULL,
    p_hands_over boolean DEFAULT false
) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_step bigint;
    v_priority integer;
    v_max_attempts integer;
    v_profile text;
    v_wakes boolean;
    v_is_closed boolean;
BEGIN
    SELECT CASE q.priority_order WHEN 'high' THEN -1 ELSE 1 END, coalesce(p_priority, q.priority_default),
        coalesce(p_max_attempts, q.max_attempts), q.profile, EXISTS (SELECT 1 FROM tenure.waiter AS w WHERE w.queue = p_queue),
        EXISTS (SELECT 1 FROM tenure.gate AS g WHERE NOT g.is_open)
    INTO v_step, v_priority, v_max_attempts, v_profile, v_wakes, v_is_closed
    FROM tenure.queue AS q
    WHERE q.name = p_queue
        AND q.forbidden_keys IS NULL AND q.aging_seconds IS NULL AND NOT q.key_required AND NOT q.events;
    IF v_is_closed IS NOT FALSE THEN  -- null where no row was found
        RETURN tenure.enqueue_group(p_queue, p_kind, 1, json_build_array(
            json_build_object('i', p_id, 'p', p_payload, 'r', p_priority, 'm', p_max_attempts)), NULL, true);
    END IF;
    IF v_wakes AND p_hands_over THEN
        IF tenure.hand_to_waiter(p_queue, p_kind, p_id, p_payload, v_step * v_priority, v_priority, v_max_attempts, v_profile, v_now) THEN
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO tenure.job (id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile, payload)
    VALUES (p_id, v_step * v_priority, v_now, v_now, v_now, v_priority, v_max_attempts, true, p_queue, p_kind, v_profile, p_payload)
    ON CONFLICT DO NOTHING;
    IF v_wakes AND FOUND THEN
        PERFORM pg_notify('tenure', p_queue);
    END IF;
    RETURN NULL;
END
$$;

-- Many of one queue and kind, as arrays of equal length; a null array is one of nulls.
-- ON CONFLICT has a price per row, so only a repeated request pays it.
CREATE OR REPLACE FUNCTION tenure.enqueue_plain(
    p_queue text, p_kind text, p_ids uuid[], p_payloads json[], p_priorities integer[] DEFAULT NULL, p_max_attempts integer[] DEFAULT NULL
) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_step bigint;
    v_priority integer;
    v_max_attempts integer;
    v_profile text;
    v_wakes boolean;
    v_is_closed boolean;
    v_any boolean;
BEGIN
    SELECT CASE q.priority_order WHEN 'high' THEN -1 ELSE 1 END, q.priority_default, q.max_attempts, q.profile,
        EXISTS (SELECT 1 FROM tenure.waiter AS w WHERE w.queue = p_queue), EXISTS (SELECT 1 FROM tenure.gate AS g WHERE NOT g.is_open)
    INTO v_step, v_priority, v_max_attempts, v_profile, v_wakes, v_is_closed
    FROM tenure.queue AS q
    WHERE q.name = p_queue
        AND q.forbidden_keys IS NULL AND q.aging_seconds IS NULL AND NOT q.key_required AND NOT q.events;
    IF v_is_closed IS NOT FALSE THEN  -- null where no row was found
        RETURN tenure.enqueue_group(p_queue, p_kind, cardinality(p_ids), (
            SELECT json_agg(json_build_object('i', g.id, 'p', g.payload, 'r', g.priority, 'm', g.max_attempts))
            FROM unnest(p_ids, p_payloads, p_priorities, p_max_attempts) AS g(id, payload, priority, max_attempts)
        ), NULL, true);
    END IF;
    BEGIN
        INSERT INTO tenure.job (id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile, payload)
        SELECT g.id, v_step * coalesce(g.priority, v_priority), v_now, v_now, v_now, coalesce(g.priority, v_priority),
            coalesce(g.max_attempts, v_max_attempts), true, p_queue, p_kind, v_profile, g.payload
        FROM (
            SELECT unnest(p_ids) AS id, unnest(p_payloads) AS payload,
                unnest(p_priorities) AS priority, unnest(p_max_attempts) AS max_attempts
        ) AS g;
        v_any := FOUND;
    EXCEPTION WHEN unique_violation THEN
        INSERT INTO tenure.job (id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile, payload)
        SELECT g.id, v_step * coalesce(g.priority, v_priority), v_now, v_now, v_now, coalesce(g.priority, v_priority),
            coalesce(g.max_attempts, v_max_attempts), true, p_queue, p_kind, v_profile, g.payload
        FROM unnest(p_ids, p_payloads, p_priorities, p_max_attempts) AS g(id, payload, priority, max_attempts)
        ON CONFLICT DO NOTHING;
        v_any := FOUND;
    END;
    IF v_any AND v_wakes THEN
        PERFORM pg_notify('tenure', p_queue);
    END IF;
    RETURN NULL;
END
$$;

-- functions/exchange.sql

-- exchange: a worker's one call. Settle what ended, claim for the free slots: one statement, one commit, one round trip.
-- Takes {"outcomes": {"done", "rest"}, "claim": {…}}, either may be absent. Answers {"settled": …, "granted": …, "refused": {"gate", "act"}}.
-- If a gate refuses the claim, what was settled stands; with nothing to settle the refusal is raised.
-- The plan is pinned by the settings below: no statement here may ever read a table from end to end, whatever its statistics say.
CREATE OR REPLACE FUNCTION tenure.exchange(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_claim json := p_request -> 'claim';
    v_outcomes json := p_request -> 'outcomes';
    v_settled json;
    v_granted json;
    v_detail text;
BEGIN
    IF v_outcomes IS NULL THEN
        RETURN json_build_object('granted', coalesce(tenure.grant_few(v_claim), tenure.grant_jobs(v_claim, v_now)));
    END IF;
    v_settled := tenure.settle_outcomes(v_outcomes, v_now);
    IF v_claim IS NULL THEN
        RETURN json_build_object('settled', v_settled);
    END IF;
    v_granted := tenure.grant_few(v_claim);
    IF v_granted IS NOT NULL THEN
        RETURN json_build_object('settled', v_settled, 'granted', v_granted);
    END IF;
    BEGIN
        RETURN json_build_object('settled', v_settled, 'granted', tenure.grant_jobs(v_claim, v_now));
    EXCEPTION WHEN SQLSTATE 'TN002' THEN
        GET STACKED DIAGNOSTICS v_detail = PG_EXCEPTION_DETAIL;
        RETURN json_build_object('settled', v_settled, 'refused', v_detail::json);
    END;
END
$$;

-- claim and settle are exchanges with one side empty; a worker in any language may call them by themselves.
CREATE OR REPLACE FUNCTION tenure.claim(p_claim json) RETURNS json
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT tenure.exchange(json_build_object('claim', p_claim)) -> 'granted' $$;

CREATE OR REPLACE FUNCTION tenure.settle(p_outcomes json) RETURNS json
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT tenure.exchange(json_build_object('outcomes', p_outcomes)) -> 'settled' $$;

-- functions/expire.sql

-- expire_leases: take back jobs whose lease ran out, up to p_limit; or, with p_worker, whatever that worker holds, run out or not.
-- The attempt was counted at the claim and is not counted again. Rows that somebody works on are skipped: one guarded look,
-- one write, under a lock. p_after: everything up to there was looked at before. Answers [id, token, state] for each.
CREATE OR REPLACE FUNCTION tenure.expire_leases(p_now timestamptz, p_after timestamptz, p_limit integer, p_worker text) RETURNS json[]
LANGUAGE plpgsql
AS $$
DECLARE
    -- A bound in either case, so that the index on lease_until serves: a claim must not walk whatever others hold.
    v_cutoff timestamptz := CASE WHEN p_worker IS NULL THEN tenure.expiry_cutoff(p_now) ELSE 'infinity' END;
    v_job tenure.job;
    v_answers json[] := '{}';
    v_alive boolean;
BEGIN
    FOR v_job IN
        SELECT j.*
        FROM tenure.job AS j
        WHERE j.state IN ('leased', 'running')
            AND j.lease_until <= v_cutoff AND j.lease_until > coalesce(p_after, '-infinity')
            AND (p_worker IS NULL OR j.lease_owner = p_worker)
        ORDER BY j.lease_until
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    LOOP
        v_alive := p_worker IS NULL AND EXISTS (
            SELECT 1 FROM tenure.worker AS w WHERE w.id = v_job.lease_owner AND w.last_seen_at >= v_job.lease_until);
        v_answers := v_answers || json_build_array(v_job.id, v_job.token, tenure.finish(
            v_job, 'expire', CASE WHEN v_alive THEN 'lease_lost' ELSE 'crash' END,
            format('The lease of worker %s ended at %s without a word from it.', v_job.lease_owner,
                to_char(v_job.lease_until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')),
            NULL, NULL, p_now));
    END LOOP;
    RETURN v_answers;
END
$$;

-- reap: expire_leases as a door of its own. Takes {"limit": n}.
CREATE OR REPLACE FUNCTION tenure.reap(p_request json) RETURNS json
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$ SELECT array_to_json(tenure.expire_leases(tenure.now(), NULL, coalesce((p_request ->> 'limit')::integer, 1000), NULL)) $$;

-- functions/find_duplicates.sql

-- find_duplicates: for the jobs of a group that were not inserted, who holds their key. Answers [id, holder] for each.
--
-- A holder whose window has passed gives its slot up, and one that ended meanwhile has none any more: then the insert is
-- tried again. A key taken by another payload is refused where the queue's policy says so.
CREATE OR REPLACE FUNCTION tenure.find_duplicates(
    p_jobs json, p_inserted uuid[], p_queue tenure.queue, p_kind text, p_now timestamptz, p_notify text
) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_found json[] := '{}';
    v_again json[] := '{}';
    v_more json;
    v_row record;
    v_slot text;
    v_holder record;
BEGIN
    FOR v_row IN
        SELECT g.i, g.k, g.p, e.value AS whole
        FROM json_array_elements(p_jobs) AS e
        CROSS JOIN LATERAL json_to_record(e.value) AS g(i uuid, k text, p json)
        WHERE NOT g.i = ANY (coalesce(p_inserted, '{}'))
        ORDER BY g.k, g.i
    LOOP
        CONTINUE WHEN EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.id = v_row.i);
        v_slot := tenure.slot_of(p_queue.key_scope, p_queue.key_space, p_queue.profile, p_kind, v_row.k);
        SELECT j.id, j.payload_hash, j.created_at INTO v_holder FROM tenure.job AS j WHERE j.dedup_slot = v_slot;
        IF NOT FOUND THEN
            v_again := v_again || v_row.whole;
        ELSIF p_queue.key_scope = 'window' AND v_holder.created_at + p_queue.key_window_seconds * interval '1 second' <= p_now THEN
            UPDATE tenure.job AS j SET dedup_slot = NULL WHERE j.id = v_holder.id AND j.dedup_slot = v_slot;
            v_again := v_again || v_row.whole;
        ELSIF p_queue.key_conflict = 'error' AND v_holder.payload_hash IS DISTINCT FROM tenure.payload_hash(coalesce(v_row.p, 'null')) THEN
            RAISE EXCEPTION 'Key % of kind % is held by job % with a different payload. Nothing was enqueued. Use another key, or the same payload.',
                quote_literal(v_row.k), quote_literal(p_kind), v_holder.id USING ERRCODE = 'TN004',
                DETAIL = json_build_object('key', v_row.k, 'kind', p_kind, 'holder', v_holder.id)::text;
        ELSE
            v_found := v_found || json_build_array(v_row.i, v_holder.id);
        END IF;
    END LOOP;
    IF cardinality(v_again) > 0 THEN
        v_more := tenure.put_group(p_queue, p_kind, cardinality(v_again), array_to_json(v_again), p_notify, false);
        v_found := v_found || ARRAY(SELECT d.value FROM json_array_elements(coalesce(v_more, '[]')) AS d);
    END IF;
    RETURN CASE WHEN cardinality(v_found) > 0 THEN array_to_json(v_found) END;
END
$$;

-- functions/fingerprint.sql

-- fingerprint: sixteen hex digits, the same for failures that differ only in numbers, ids and addresses.
-- The rule is tenure.model.fingerprint's; a test holds the two together.
CREATE OR REPLACE FUNCTION tenure.fingerprint(p_class text, p_error text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT pg_catalog.substr(
        pg_catalog.md5(
            p_class || '|' || pg_catalog.regexp_replace(
                pg_catalog.left(pg_catalog.lower(pg_catalog.split_part(coalesce(p_error, ''), E'\n', 1) COLLATE "C"), 500),
                '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|0x[0-9a-f]+|[0-9]+', '#', 'g'
            )
        ),
        1, 16
    )
$$;

-- functions/finish.sql

-- finish: end an attempt that did not succeed. The one place that decides what comes next. Answers the state the job is in now.
--
-- p_job is the row as it stands, locked by the caller, who has checked the token or found the lease run out.
-- p_move: fail, reject, release, suspend, stop, expire. A cancel that was asked for wins over all of them.
-- A failed attempt waits by its backoff (p_delay wins); an expired one is claimable at once and keeps its run_at, so that it comes
-- before newer work. Release and suspend give the attempt back. Every end leaves an attempt row; a death leaves a dead letter.
CREATE OR REPLACE FUNCTION tenure.finish(
    p_job tenure.job, p_move text, p_class text, p_error text, p_delay double precision, p_waiting_for text, p_now timestamptz
) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_queue tenure.queue;
    v_error text := left(p_error, 16384);
    v_state text := CASE
        WHEN p_job.cancel_requested_at IS NOT NULL OR p_move = 'stop' THEN 'cancelled'
        WHEN p_move = 'reject' THEN 'failed'
        WHEN p_move = 'release' THEN 'queued'
        WHEN p_move = 'suspend' THEN 'waiting'
        WHEN p_job.attempt >= p_job.max_attempts THEN 'dead'
        ELSE 'queued'
    END;
    v_failed boolean := p_move IN ('fail', 'expire', 'reject');
    v_class text := CASE WHEN v_state = 'cancelled' THEN 'cancelled' ELSE p_class END;
    v_run_at timestamptz := p_job.run_at;
BEGIN
    SELECT * INTO v_queue FROM tenure.queue AS q WHERE q.name = p_job.queue;
    IF v_state = 'waiting' THEN
        v_run_at := coalesce(p_now + p_delay * interval '1 second', 'infinity');
    ELSIF v_state = 'queued' AND p_move = 'fail' THEN
        v_run_at := p_now + coalesce(p_delay, tenure.backoff_seconds(v_queue, p_job.backoff, p_job.attempt)) * interval '1 second';
    ELSIF v_state = 'queued' AND p_move = 'release' AND p_delay > 0 THEN
        v_run_at := p_now + p_delay * interval '1 second';
    END IF;

    UPDATE tenure.job AS j
    SET state = v_state,
        attempt = CASE WHEN p_move IN ('release', 'suspend') AND v_state <> 'cancelled' THEN greatest(j.attempt - 1, 0) ELSE j.attempt END,
        crashes = j.crashes + CASE WHEN p_move = 'expire' OR p_class = 'crash' THEN 1 ELSE 0 END,
        run_at = v_run_at,
        is_due = v_state <> 'waiting' AND v_run_at <= p_now,
        lease_owner = NULL,
        lease_until = NULL,
        waiting_for = CASE WHEN v_state = 'waiting' THEN p_waiting_for END,
        last_error = CASE WHEN v_failed OR (v_state = 'cancelled' AND v_error IS NOT NULL) THEN v_error ELSE j.last_error END,
        failure_class = CASE WHEN v_failed OR v_state = 'cancelled' THEN v_class ELSE j.failure_class END,
        finished_at = CASE WHEN v_state IN ('dead', 'failed', 'cancelled') THEN p_now END,
        dedup_slot = CASE WHEN v_state IN ('dead', 'failed', 'cancelled') AND left(j.dedup_slot, 1) = 'a' THEN NULL ELSE j.dedup_slot END,
        updated_at = p_now
    WHERE j.id = p_job.id;

    INSERT INTO tenure.attempt (job_id, token, attempt, worker, claimed_at, ended_at, outcome, failure_class, error, fingerprint, run_at)
    VALUES (
        p_job.id, p_job.token, p_job.attempt, p_job.lease_owner, p_job.claimed_at, p_now,
        CASE
            WHEN p_move = 'expire' THEN 'expired'  -- whatever it came to: a late word of its worker was never taken in
            WHEN v_state IN ('cancelled', 'dead', 'failed') THEN v_state
            WHEN p_move = 'suspend' THEN 'suspended'
            WHEN p_move = 'release' THEN 'released'
            ELSE 'retried'
        END,
        v_class, v_error, CASE WHEN v_failed THEN tenure.fingerprint(v_class, v_error) END,
        CASE WHEN v_state = 'queued' THEN v_run_at END
    )
    ON CONFLICT DO NOTHING;
    IF v_state IN ('dead', 'failed') THEN
        PERFORM tenure.bury(p_job, v_state, v_class, v_error, p_now);
    END IF;
    IF v_queue.events THEN
        PERFORM tenure.tell(
            CASE
                WHEN v_state IN ('cancelled', 'dead', 'failed') THEN v_state
                WHEN p_move = 'expire' THEN 'reclaimed'
                WHEN p_move = 'suspend' THEN 'suspended'
                WHEN p_move = 'release' THEN 'released'
                ELSE 'retried'
            END,
            ARRAY[p_job.id], p_now
        );
    END IF;
    IF v_state = 'queued' AND v_run_at <= p_now THEN
        PERFORM tenure.notify(v_queue, NULL);
    END IF;
    RETURN v_state;
END
$$;

-- bury: the dead letter of a job that has just died, in the same transaction.
CREATE OR REPLACE FUNCTION tenure.bury(p_job tenure.job, p_state text, p_class text, p_error text, p_now timestamptz) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO tenure.dead_letter (
        job_id, token, queue, profile, kind, state, payload, forbidden_keys, source_ref, target_ref, payload_ref, idempotency_key,
        actor, run_id, workflow_id, attempts, crashes, failure_class, final_error, fingerprint, moved_at, moved_by
    )
    VALUES (
        p_job.id, p_job.token, p_job.queue, p_job.profile, p_job.kind, p_state, p_job.payload, p_job.forbidden_keys,
        p_job.source_ref, p_job.target_ref, p_job.payload_ref, p_job.idempotency_key, p_job.actor, p_job.run_id, p_job.workflow_id,
        p_job.attempt, p_job.crashes + CASE WHEN p_class IN ('crash', 'lease_lost') THEN 1 ELSE 0 END, p_class,
        coalesce(nullif(btrim(p_error), ''), p_class), tenure.fingerprint(p_class, p_error), p_now,
        coalesce(p_job.lease_owner, 'tenure')
    )
    ON CONFLICT DO NOTHING
$$;

-- backoff_seconds: min(cap, base × f(n)), then jitter, which only lengthens. A job's own backoff wins over its queue's.
CREATE OR REPLACE FUNCTION tenure.backoff_seconds(p_queue tenure.queue, p_own json, p_attempt integer) RETURNS double precision
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$
    SELECT least(p.cap, p.base * CASE p.shape
            WHEN 'none' THEN 0
            WHEN 'constant' THEN 1
            WHEN 'linear' THEN p_attempt
            WHEN 'power' THEN power(p_attempt, p.exponent)
            ELSE power(p.factor, least(p_attempt - 1, 60))
        END) * (1 + p.jitter * random())
    FROM (
        SELECT
            coalesce(p_own ->> 'shape', p_queue.backoff_shape) AS shape,
            coalesce((p_own ->> 'base_seconds')::double precision, p_queue.backoff_base_seconds) AS base,
            coalesce((p_own ->> 'power')::double precision, p_queue.backoff_power) AS exponent,
            coalesce((p_own ->> 'factor')::double precision, p_queue.backoff_factor) AS factor,
            coalesce((p_own ->> 'cap_seconds')::double precision, p_queue.backoff_cap_seconds) AS cap,
            coalesce((p_own ->> 'jitter')::double precision, p_queue.backoff_jitter) AS jitter
    ) AS p
$$;

-- functions/get_jobs.sql

-- get_jobs: {"job_ids": [id, …]} → the jobs that are there, in no order.
CREATE OR REPLACE FUNCTION tenure.get_jobs(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(tenure.show_job(j)), '[]')
    FROM tenure.job AS j
    WHERE j.id = ANY (ARRAY(SELECT tenure.as_uuid(e.value) FROM json_array_elements_text(p_request -> 'job_ids') AS e))
$$;

-- functions/grant_few.sql

-- claim_few: the common claim of an idle or little loaded worker: fewer than 50 jobs of one queue. Answers as claim does.
-- Where that queue is open and has no limits of its own, no lease has run out and no job has come due, nothing is to be done but to grant,
-- and it is done in few words: what such a claim costs is getting ready, statement by statement and expression by expression, on a
-- processor that has slept. So its arguments are plain, not JSON. In every other case grant_jobs does it, or with p_or_null nobody.
-- p_offers: if nothing is granted, an enqueue may hand a job over to this worker for a moment. p_offered: the answer before said that one
-- might; whatever was handed over since comes first. See hand_to_waiter.
-- p_expired and p_due are the marks of the last answer. The look begins a millisecond before them: a double is not exact, and need not be.
-- Its plans are pinned by no more settings than they need, for each takes PostgreSQL 15 some 20 of a claim's 500 microseconds: there is no
-- join here, and nothing that costs enough to be compiled. What needs the others is behind grant_rest.
CREATE OR REPLACE FUNCTION tenure.claim_few(
    p_worker text, p_queue text, p_limit integer, p_lease double precision, p_expired bigint, p_due bigint,
    p_wake boolean DEFAULT NULL, p_beat boolean DEFAULT false, p_or_null boolean DEFAULT false,
    p_offers boolean DEFAULT false, p_offered boolean DEFAULT false
) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_cutoff timestamptz := tenure.expiry_cutoff(v_now);
    -- As to_us would have it until the year 2255, and far cheaper.
    v_now_us bigint := date_part('epoch', v_now) * 1000000;
    v_expired timestamptz := coalesce(to_timestamp(p_expired::double precision / 1000000 - 0.001), '-infinity');
    v_due timestamptz := coalesce(to_timestamp(p_due::double precision / 1000000 - 0.001), '-infinity');
    v_until timestamptz;
    v_started boolean;
    v_at tid[];
    v_grants json;
    v_offered boolean := false;
    -- Locked until this claim has ended: meanwhile an enqueue passes the offer by.
    v_was_taken boolean := CASE WHEN p_offered THEN NOT tenure.lock_offer(p_worker, p_queue) ELSE false END;
BEGIN
    IF p_wake IS NOT NULL THEN  -- before the look: a job that arrives after it is notified
        PERFORM tenure.set_waiter(p_worker, json_build_array(p_queue), p_wake);
    END IF;
    -- An empty array says that there is more to do than to grant, null that there is nothing to grant. What is not a column of the queue
    -- stands beside its row and not in WHERE, as in enqueue_one.
    SELECT v_now + coalesce(p_lease, q.lease_seconds) * interval '1 second', q.start_on_claim,
        CASE WHEN p_limit BETWEEN 0 AND 49
            AND NOT v_was_taken
            AND NOT EXISTS (SELECT 1 FROM tenure.gate AS g WHERE NOT g.is_open)
            AND NOT EXISTS (
                SELECT 1
                FROM tenure.job AS j
                WHERE j.state IN ('leased', 'running') AND j.lease_until <= v_cutoff AND j.lease_until >= v_expired
            )
            AND NOT EXISTS (
                SELECT 1
                FROM tenure.job AS j
                WHERE NOT j.is_due AND j.state IN ('queued', 'waiting') AND j.run_at <= v_now AND j.run_at >= v_due
            )
        THEN (
            SELECT array_agg(p.at)
            FROM (
                SELECT j.ctid AS at
                FROM tenure.job AS j
                WHERE j.queue = p_queue AND j.state = 'queued' AND j.is_due
                ORDER BY j.rank, j.run_at, j.id
                LIMIT p_limit
                FOR UPDATE SKIP LOCKED
            ) AS p
        ) ELSE '{}' END
    INTO v_until, v_started, v_at
    FROM tenure.queue AS q
    WHERE q.name = p_queue
        AND q.paused_at IS NULL AND q.concurrency IS NULL AND q.concurrency_per_key IS NULL AND NOT q.events
        AND (p_lease IS NULL OR p_lease > 0 AND p_lease <= q.lease_max_seconds);
    IF NOT FOUND OR cardinality(v_at) = 0 THEN
        RETURN CASE WHEN NOT p_or_null THEN tenure.grant_rest(json_build_object(
            'worker', p_worker, 'queues', json_build_array(p_queue), 'limit', p_limit, 'lease', p_lease, 'beat', p_beat,
            'offered', p_offered, 'marks', json_build_object('expired', p_expired, 'due', p_due)), v_now) END;
    END IF;
    IF v_at IS NULL AND p_offers THEN
        v_offered := tenure.offer(p_worker, p_queue, p_lease, v_now, v_until);
    END IF;
    IF p_offered AND NOT v_offered THEN
        PERFORM tenure.withdraw_offer(p_worker, p_queue);
    END IF;
    IF v_at IS NULL THEN
        RETURN json_build_object('lines', '[]'::json, 'marks', '[]'::json, 'expired', v_now_us, 'due', v_now_us,
            'waiting', (SELECT count(*) FROM tenure.waiter AS w WHERE w.queue = p_queue), 'shared', NULL, 'offered', v_offered, 'age', NULL,
            'news', CASE WHEN p_beat THEN tenure.beat_idle(p_worker, v_now) END);
    END IF;
    -- The same UPDATE twice: a single job, the common case here, is not gathered and sorted, which takes 40 to 70 of some 300 microseconds.
    IF cardinality(v_at) = 1 THEN
        UPDATE tenure.job AS j
        SET state = CASE WHEN v_started THEN 'running' ELSE 'leased' END,
            token = j.token + 1,
            attempt = j.attempt + 1,
            lease_owner = p_worker,
            lease_until = v_until,
            claimed_at = v_now,
            started_at = CASE WHEN v_started THEN coalesce(j.started_at, v_now) ELSE j.started_at END,
            updated_at = v_now
        WHERE j.ctid = v_at[1]
        RETURNING json_build_array(json_build_array(
            j.id, j.kind, j.token, j.attempt, j.max_attempts, j.payload::text, j.priority, j.crashes, j.rank,
            (date_part('epoch', j.run_at) * 1000000)::bigint,  -- only for order, as in claim_queue
            CASE WHEN num_nonnulls(
                j.idempotency_key, j.affinity_key, j.concurrency_key, j.source_ref, j.target_ref, j.payload_ref, j.actor,
                j.created_by_user_id, j.requested_by_user_id, j.tenant, j.workflow_id, j.parent_id, j.run_id, j.trace,
                j.artifacts_path, j.progress) > 0
            THEN tenure.grant_extras(j) END
        )) INTO v_grants;
    ELSE
        WITH taken AS MATERIALIZED (
            UPDATE tenure.job AS j
            SET state = CASE WHEN v_started THEN 'running' ELSE 'leased' END,
                token = j.token + 1,
                attempt = j.attempt + 1,
                lease_owner = p_worker,
                lease_until = v_until,
                claimed_at = v_now,
                started_at = CASE WHEN v_started THEN coalesce(j.started_at, v_now) ELSE j.started_at END,
                updated_at = v_now
            WHERE j.ctid = ANY (v_at)
            RETURNING
                j.rank, j.run_at, j.id,
                json_build_array(
                    j.id, j.kind, j.token, j.attempt, j.max_attempts, j.payload::text, j.priority, j.crashes, j.rank,
                    (date_part('epoch', j.run_at) * 1000000)::bigint,  -- only for order, as in claim_queue
                    CASE WHEN num_nonnulls(
                        j.idempotency_key, j.affinity_key, j.concurrency_key, j.source_ref, j.target_ref, j.payload_ref, j.actor,
                        j.created_by_user_id, j.requested_by_user_id, j.tenant, j.workflow_id, j.parent_id, j.run_id, j.trace,
                        j.artifacts_path, j.progress) > 0
                    THEN tenure.grant_extras(j) END
                ) AS line
        )
        SELECT json_agg(t.line ORDER BY t.rank, t.run_at, t.id) INTO v_grants FROM taken AS t;
    END IF;
    RETURN json_build_object(
        'lines', json_build_array(json_build_array(p_queue, (date_part('epoch', v_until) * 1000000)::bigint, v_started, v_grants)),
        'marks', '[]'::json, 'expired', v_now_us, 'due', v_now_us, 'waiting', NULL, 'shared', NULL,
        'offered', false, 'age', NULL, 'news', NULL);
END
$$;

-- grant_rest: grant_jobs, under those settings of exchange that claim_few does without.
CREATE OR REPLACE FUNCTION tenure.grant_rest(p_claim json, p_now timestamptz) RETURNS json
LANGUAGE plpgsql
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$ BEGIN RETURN tenure.grant_jobs(p_claim, p_now); END $$;

-- grant_few: claim_few for a claim in JSON, if it is one of those; else null, which asks for grant_jobs.
CREATE OR REPLACE FUNCTION tenure.grant_few(p_claim json) RETURNS json
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN (
        SELECT tenure.claim_few(
            c.worker, c.queues ->> 0, c."limit", c.lease, (c.marks ->> 'expired')::bigint, (c.marks ->> 'due')::bigint, c.wake, c.beat, true,
            coalesce(c.offers, false), coalesce(c.offered, false))
        FROM json_to_record(p_claim) AS c(
            worker text, queues json, "limit" integer, kinds json, affinity json, lease double precision, held json, wake boolean,
            beat boolean, offers boolean, offered boolean, marks json)
        WHERE c."limit" < 50 AND c.kinds IS NULL AND c.affinity IS NULL AND c.held IS NULL
            AND c.queues ->> 1 IS NULL AND c.marks -> 'queues' ->> (c.queues ->> 0) IS NULL
    );
END
$$;

-- grant_extras: what is set of a job's rare columns. In plpgsql, so that a grant without any does not get it ready.
CREATE OR REPLACE FUNCTION tenure.grant_extras(p_job tenure.job) RETURNS json
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN json_strip_nulls(json_build_object(
        'key', p_job.idempotency_key, 'affinity_key', p_job.affinity_key, 'concurrency_key', p_job.concurrency_key,
        'source_ref', p_job.source_ref, 'target_ref', p_job.target_ref, 'payload_ref', p_job.payload_ref, 'actor', p_job.actor,
        'created_by_user_id', p_job.created_by_user_id, 'requested_by_user_id', p_job.requested_by_user_id,
        'tenant', p_job.tenant, 'workflow_id', p_job.workflow_id, 'parent_id', p_job.parent_id, 'run_id', p_job.run_id,
        'trace', p_job.trace, 'artifacts_path', p_job.artifacts_path, 'progress', p_job.progress));
END
$$;

-- functions/grant_jobs.sql

-- grant_jobs: the claiming half of an exchange. Answers {"lines": [[queue, until_us, started, [grant, …]], …], "marks", "expired", "due",
-- "waiting", "shared", "offered", "age", "news"}: how many workers want to be woken for these queues, told if nothing was granted; whether
-- others are busy with them too, told if many were; whether an enqueue may now hand a job over, which only claim_few lets it; how many
-- seconds ago the oldest of jobs that are handed out again was granted; and what beat_idle answers, if nothing was granted and the claim
-- is to be a heartbeat.
--
-- Order of work: gates, then leases that ran out are taken back, then jobs that came due are made claimable, then new work.
-- p_claim: {"worker", "queues", "limit", "kinds", "affinity", "lease", "strict", "held", "wake", "beat", "offers", "offered", "marks"}.
-- `marks` is what the last answer gave this caller: {"expired": us, "due": us, "queues": {name: [[rank, run_at_us, id], …]}}; null asks for a full look.
-- p_is_loop: a worker's loop asks, which the gates named `worker` may stop; a profile's own claim function asks without.
CREATE OR REPLACE FUNCTION tenure.grant_jobs(p_claim json, p_now timestamptz, p_is_loop boolean DEFAULT true) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_worker text := p_claim ->> 'worker';
    v_left integer := (p_claim ->> 'limit')::integer;
    v_kinds text[] := CASE WHEN p_claim -> 'kinds' IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(p_claim -> 'kinds')) END;
    v_affinity text[] := CASE WHEN p_claim -> 'affinity' IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(p_claim -> 'affinity')) END;
    v_lease double precision := (p_claim ->> 'lease')::double precision;
    v_marks json := p_claim -> 'marks';
    v_queues tenure.queue[];
    v_queue tenure.queue;
    v_others tenure.queue[];
    v_strict boolean := coalesce((p_claim ->> 'strict')::boolean, false);
    v_quota integer[];
    v_lines json[] := '{}';
    v_new_marks json[] := '{}';
    v_part record;
    v_want integer;
    v_expired json[];
    v_due timestamptz;
    v_held json := coalesce(p_claim -> 'held', CASE WHEN (p_claim ->> 'offered')::boolean THEN '[]'::json END);
    v_age double precision;
BEGIN
    v_queues := tenure.open_queues(ARRAY(SELECT json_array_elements_text(p_claim -> 'queues')), v_lease, p_is_loop);
    v_expired := tenure.expire_leases(p_now, tenure.from_us((v_marks ->> 'expired')::bigint), 1000, NULL);
    v_due := tenure.promote_due(p_now, tenure.from_us((v_marks ->> 'due')::bigint), 1000);
    IF v_held IS NOT NULL THEN  -- first of all: nothing more is handed over, and whoever did so has committed
        PERFORM tenure.withdraw_offer(v_worker, q.name) FROM json_array_elements_text(p_claim -> 'queues') AS q(name);
    END IF;
    IF p_claim -> 'wake' IS NOT NULL THEN
        PERFORM tenure.set_waiter(v_worker, p_claim -> 'queues', (p_claim ->> 'wake')::boolean);
    END IF;
    IF v_held IS NOT NULL THEN
        SELECT r.lines, r.age INTO v_lines, v_age FROM tenure.regrant(v_worker, v_held, greatest(v_left, 1), p_now) AS r;
        v_left := greatest(v_left - cardinality(v_lines), 0);
    END IF;

    -- A queue at its limit gives less than its share, and what it could not give is shared out among the others.
    LOOP
        v_quota := CASE WHEN cardinality(v_queues) > 1 AND NOT v_strict THEN tenure.share_out(v_queues, v_left, v_kinds, v_affinity) END;
        v_others := '{}';
        FOR i IN 1 .. coalesce(cardinality(v_queues), 0) LOOP
            v_queue := v_queues[i];
            v_want := least(v_left, coalesce(v_quota[i], v_left));
            IF v_want <= 0 THEN
                v_others := v_others || v_queue;
                CONTINUE;
            END IF;
            v_part := tenure.claim_marked(v_queue, v_worker, v_want, v_kinds, v_affinity, v_lease, p_now, v_marks -> 'queues' -> v_queue.name);
            IF v_part.granted > 0 THEN
                v_lines := v_lines || v_part.grants;
                v_left := v_left - v_part.granted;
                IF v_part.marks IS NOT NULL THEN
                    v_new_marks := v_new_marks || json_build_array(v_queue.name, v_part.marks);
                END IF;
            END IF;
            IF v_part.granted = v_want THEN
                v_others := v_others || v_queue;
            END IF;
        END LOOP;
        EXIT WHEN v_left <= 0 OR cardinality(v_others) IN (0, cardinality(v_queues));
        v_queues := v_others;
    END LOOP;
    RETURN json_build_object(
        'lines', array_to_json(v_lines),
        'marks', array_to_json(v_new_marks),
        'expired', CASE WHEN cardinality(v_expired) < 1000 THEN tenure.to_us(p_now) ELSE (v_marks ->> 'expired')::bigint END,
        'due', tenure.to_us(v_due),
        'waiting', CASE WHEN cardinality(v_lines) = 0 THEN (
            SELECT count(DISTINCT w.worker)
            FROM tenure.waiter AS w
            WHERE w.queue IN (SELECT json_array_elements_text(p_claim -> 'queues'))
        ) END,
        'shared', CASE WHEN cardinality(v_new_marks) > 0 THEN tenure.has_company(v_worker, p_claim -> 'queues', p_now) END,
        'offered', false,
        'age', v_age,
        'news', CASE WHEN cardinality(v_lines) = 0 AND (p_claim ->> 'beat')::boolean THEN tenure.beat_idle(v_worker, p_now) END);
END
$$;

-- has_company: whether another worker of one of these queues was seen within a minute and does not wait to be woken. Looks at a few.
CREATE OR REPLACE FUNCTION tenure.has_company(p_worker text, p_queues json, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1
        FROM (
            SELECT w.id, w.queues
            FROM tenure.worker AS w
            WHERE w.last_seen_at > p_now - interval '1 minute' AND w.id <> p_worker
            ORDER BY w.last_seen_at DESC
            LIMIT 8
        ) AS o
        WHERE o.queues && ARRAY(SELECT json_array_elements_text(p_queues))
            AND NOT EXISTS (SELECT 1 FROM tenure.waiter AS s WHERE s.worker = o.id)
    );
END
$$;

-- claim_marked: claim_queue at the marks of the last claim, rank by rank, then a full look for what is still wanting.
CREATE OR REPLACE FUNCTION tenure.claim_marked(
    p_queue tenure.queue, p_worker text, p_limit integer, p_kinds text[], p_affinity text[], p_lease double precision,
    p_now timestamptz, p_marks json, OUT grants json[], OUT granted integer, OUT marks json
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_mark json;
    v_part record;
    v_marks json[] := '{}';
    v_until bigint := tenure.to_us(p_now + coalesce(p_lease, p_queue.lease_seconds) * interval '1 second');
BEGIN
    grants := '{}';
    granted := 0;
    IF p_marks IS NOT NULL THEN
        FOR v_mark IN SELECT m.value FROM json_array_elements(p_marks) AS m ORDER BY (m.value ->> 0)::bigint LOOP
            EXIT WHEN granted >= p_limit;
            v_part := tenure.claim_queue(p_queue, p_worker, p_limit - granted, p_kinds, p_affinity, p_lease, p_now,
                (v_mark ->> 0)::bigint, tenure.from_us((v_mark ->> 1)::bigint), (v_mark ->> 2)::uuid);
            IF v_part.granted > 0 THEN
                granted := granted + v_part.granted;
                grants := grants || json_build_array(p_queue.name, v_until, p_queue.start_on_claim, v_part.grants);
                v_marks := v_marks || coalesce(v_part.marks, '[]');
            END IF;
        END LOOP;
    END IF;
    IF granted < p_limit THEN
        v_part := tenure.claim_queue(p_queue, p_worker, p_limit - granted, p_kinds, p_affinity, p_lease, p_now, NULL, NULL, NULL);
        IF v_part.granted > 0 THEN
            granted := granted + v_part.granted;
            grants := grants || json_build_array(p_queue.name, v_until, p_queue.start_on_claim, v_part.grants);
            v_marks := v_marks || coalesce(v_part.marks, '[]');
        END IF;
    END IF;
    IF granted >= 50 THEN
        marks := (SELECT json_agg(m.value) FROM unnest(v_marks) AS a(list) CROSS JOIN LATERAL json_array_elements(a.list) AS m);
    END IF;
END
$$;

-- functions/group_dead_letters.sql

-- group_dead_letters: deaths that look alike, most letters first. The newest of each group is its sample.
CREATE OR REPLACE FUNCTION tenure.group_dead_letters(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_triage text[] := tenure.text_list(p_request -> 'triage');
BEGIN
    RETURN (
        SELECT coalesce(json_agg(row_to_json(g) ORDER BY g.letters DESC, g.last_at DESC, g.fingerprint), '[]')
        FROM (
            SELECT
                d.fingerprint,
                d.kind,
                d.queue,
                count(*) AS letters,
                count(*) FILTER (WHERE d.triage = 'pending') AS pending,
                tenure.to_us(min(d.moved_at)) AS first_at,
                tenure.to_us(max(d.moved_at)) AS last_at,
                (array_agg(d.final_error ORDER BY d.moved_at DESC, d.id DESC))[1] AS sample_error,
                (array_agg(d.job_id ORDER BY d.moved_at DESC, d.id DESC))[1] AS sample_job_id
            FROM tenure.dead_letter AS d
            WHERE v_triage IS NULL OR d.triage = ANY (v_triage)
            GROUP BY d.fingerprint, d.kind, d.queue
            ORDER BY letters DESC, last_at DESC, d.fingerprint
            LIMIT v_limit
        ) AS g
    );
END
$$;

-- functions/hand_to_waiter.sql

-- The job that an enqueue hands over. An idle worker offers, with a claim that found nothing, to take a job for the next moment. An enqueue
-- that finds the offer grants it the job in its own transaction and says so in its notification: `granted:`, the worker, the job. The worker
-- reads the job by its id, which commits nothing, and starts.
--
-- An offer is withdrawn by whatever takes it up, and by the next claim of its worker. If it is gone then, a job was handed over, and that
-- claim gives it out, whether the word of it has arrived or not: a word that is lost costs a poll. The session that listens for a worker holds
-- a lock in its name until it ends (stand_by), so nothing is handed to a worker that is gone. One that is stopped, or cut off without a trace,
-- is handed one job at most, within 2.5 seconds of its last poll.
--
-- No payload goes into the notification: whoever may connect can listen.

-- hand_to_waiter: put the job down as granted to a worker that has offered to take one, and tell it. The row is as a claim would leave it.
-- Only where claim_few would do nothing but grant just this job: none waits before it, no lease has run out and none has come due since the
-- claim that offered, which looked itself. Gates were looked at by the enqueue. Answers whether it was done.
-- It waits for nobody but an earlier try of this very request, which waits for nobody; see the locks in schema.sql.
CREATE OR REPLACE FUNCTION tenure.hand_to_waiter(
    p_queue text, p_kind text, p_id uuid, p_payload json, p_rank bigint, p_priority integer, p_max_attempts integer, p_profile text,
    p_now timestamptz
) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_worker text;
    v_lease double precision;
    v_until timestamptz;
BEGIN
    SELECT w.worker, w.lease_seconds, w.offered_until INTO v_worker, v_lease, v_until
    FROM tenure.waiter AS w
    WHERE w.queue = p_queue AND w.offered_until > p_now
        AND (SELECT count(*) FROM (SELECT 1 FROM tenure.waiter AS o WHERE o.queue = p_queue LIMIT 9) AS few) <= 8  -- as in offer
    LIMIT 1
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Asked under the lock on its row, so that no two ask at once: whoever finds nobody holds the lock for the rest of its transaction.
    IF pg_try_advisory_xact_lock(tenure.presence(), hashtext(v_worker)) THEN
        PERFORM tenure.withdraw_offer(v_worker, p_queue);
        RETURN false;
    END IF;
    IF NOT tenure.put_granted(p_queue, p_kind, p_id, p_payload, p_rank, p_priority, p_max_attempts, p_profile,
        v_worker, v_lease, v_until - interval '3 seconds', p_now)
    THEN
        RETURN false;
    END IF;
    PERFORM tenure.withdraw_offer(v_worker, p_queue);
    PERFORM pg_notify('tenure', 'granted:' || v_worker || ':' || p_id);
    RETURN true;
END
$$;

-- put_granted: the row of a job that is granted from the start, if a claim would grant it now. A function of its own, because its plan must
-- be as sure as a claim's.
CREATE OR REPLACE FUNCTION tenure.put_granted(
    p_queue text, p_kind text, p_id uuid, p_payload json, p_rank bigint, p_priority integer, p_max_attempts integer, p_profile text,
    p_worker text, p_lease double precision, p_since timestamptz, p_now timestamptz
) RETURNS boolean
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_cutoff timestamptz := tenure.expiry_cutoff(p_now);
BEGIN
    INSERT INTO tenure.job (
        id, token, rank, run_at, created_at, updated_at, lease_until, claimed_at, started_at, priority, attempt, max_attempts, is_due,
        state, queue, kind, profile, payload, lease_owner
    )
    SELECT
        p_id, 1, p_rank, p_now, p_now, p_now, p_now + coalesce(p_lease, q.lease_seconds) * interval '1 second', p_now,
        CASE WHEN q.start_on_claim THEN p_now END, p_priority, 1, p_max_attempts, true,
        CASE WHEN q.start_on_claim THEN 'running' ELSE 'leased' END, p_queue, p_kind, p_profile, p_payload, p_worker
    FROM tenure.queue AS q
    WHERE q.name = p_queue
        AND q.paused_at IS NULL AND q.concurrency IS NULL AND q.concurrency_per_key IS NULL AND NOT q.events
        AND coalesce(p_lease, q.lease_seconds) <= q.lease_max_seconds
        AND NOT EXISTS (
            SELECT 1
            FROM tenure.job AS j
            WHERE j.queue = p_queue AND j.state = 'queued' AND j.is_due
                AND j.rank <= p_rank
        )
        AND NOT EXISTS (
            SELECT 1
            FROM tenure.job AS j
            WHERE j.state IN ('leased', 'running') AND j.lease_until <= v_cutoff AND j.lease_until >= p_since
        )
        AND NOT EXISTS (
            SELECT 1
            FROM tenure.job AS j
            WHERE NOT j.is_due AND j.state IN ('queued', 'waiting') AND j.run_at <= p_now AND j.run_at >= p_since
        )
    ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;

-- take_over: a job that was handed over to this worker, as claim_few would grant it. Nothing is written. No line if the worker holds it no
-- more: it was removed meanwhile, or its lease has run out.
CREATE OR REPLACE FUNCTION tenure.take_over(p_worker text, p_job uuid) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_cutoff timestamptz := tenure.expiry_cutoff(v_now);
    v_line json;
    v_age double precision;
BEGIN
    SELECT json_build_array(j.queue, (date_part('epoch', j.lease_until) * 1000000)::bigint, j.state = 'running', json_build_array(json_build_array(
            j.id, j.kind, j.token, j.attempt, j.max_attempts, j.payload::text, j.priority, j.crashes, j.rank,
            (date_part('epoch', j.run_at) * 1000000)::bigint,
            CASE WHEN num_nonnulls(
                j.idempotency_key, j.affinity_key, j.concurrency_key, j.source_ref, j.target_ref, j.payload_ref, j.actor,
                j.created_by_user_id, j.requested_by_user_id, j.tenant, j.workflow_id, j.parent_id, j.run_id, j.trace,
                j.artifacts_path, j.progress) > 0
            THEN tenure.grant_extras(j) END
        ))), date_part('epoch', v_now - j.claimed_at)
    INTO v_line, v_age
    FROM tenure.job AS j
    WHERE j.id = p_job AND j.lease_owner = p_worker AND j.state IN ('leased', 'running') AND j.lease_until > v_cutoff;
    RETURN json_build_object('lines', CASE WHEN v_line IS NULL THEN '[]' ELSE json_build_array(v_line) END, 'age', v_age);
END
$$;

-- offer: let an enqueue hand a job over to this worker for 2.5 seconds, which are two polls and some. Only where few wait: a large fleet polls
-- seldom, and is not to write whenever it does. Not under a short lease, which would run out before a word that got lost is made good.
CREATE OR REPLACE FUNCTION tenure.offer(
    p_worker text, p_queue text, p_lease double precision, p_now timestamptz, p_until timestamptz
) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE tenure.waiter AS w
    SET offered_until = p_now + interval '2.5 seconds',
        lease_seconds = p_lease
    WHERE w.queue = p_queue AND w.worker = p_worker AND length(p_worker) <= 200  -- a notification has little room
        AND p_until >= p_now + interval '10 seconds'
        AND (SELECT count(*) FROM (SELECT 1 FROM tenure.waiter AS o WHERE o.queue = p_queue LIMIT 9) AS few) <= 8;
    RETURN FOUND;
END
$$;

-- stand_by: while this session lives, jobs may be handed over to this worker. For the session that listens, and no other: one that enqueues
-- must not stand by for the worker it is to ask for, because nobody is kept out by a lock of his own.
CREATE OR REPLACE FUNCTION tenure.stand_by(p_worker text) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    PERFORM pg_advisory_lock_shared(tenure.presence(), hashtext(p_worker));
    RETURN NULL;
END
$$;

-- presence: the first part of the names of the locks by which sessions stand by.
CREATE OR REPLACE FUNCTION tenure.presence() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT 1952804469 $$;

-- lock_offer: whether the worker's offer still stands. If so nobody takes it up before the caller's transaction ends.
CREATE OR REPLACE FUNCTION tenure.lock_offer(p_worker text, p_queue text) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM 1
    FROM tenure.waiter AS w
    WHERE w.queue = p_queue AND w.worker = p_worker AND w.offered_until IS NOT NULL
    FOR UPDATE;
    RETURN FOUND;
END
$$;

-- withdraw_offer: no job is handed over to this worker any more.
CREATE OR REPLACE FUNCTION tenure.withdraw_offer(p_worker text, p_queue text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE tenure.waiter AS w
    SET offered_until = NULL
    WHERE w.queue = p_queue AND w.worker = p_worker AND w.offered_until IS NOT NULL;
END
$$;

-- functions/heartbeat.sql

-- heartbeat: extend the leases of all held jobs, store their progress, refresh the worker's row. One statement for the caller.
-- Takes {"holds": [{"i": id, "t": token, "p": progress, "s": started}], "lease": seconds, "worker": {…}, "news": true}.
-- Answers {"lost": [id], "cancel": [id]}; with a worker that asks for news also {"news": {…}}, see worker_news.
-- Never revives a lost lease, never shortens one, never reaches beyond now + lease.
CREATE OR REPLACE FUNCTION tenure.heartbeat(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_cutoff timestamptz := tenure.expiry_cutoff(v_now);
    v_holds json := coalesce(p_request -> 'holds', '[]');
    v_lease double precision := (p_request ->> 'lease')::double precision;
    v_kept uuid[] := '{}';
    v_cancel uuid[] := '{}';
    v_started uuid[];
    v_moved uuid[];
    v_lost json := '[]';
BEGIN
    IF v_lease <= 0 THEN
        RAISE EXCEPTION 'lease_seconds is %; it must be positive.', v_lease USING ERRCODE = 'TN007';
    END IF;
    -- A row that somebody wrote to while we waited for its lock lies in a new place, which the waiting statement cannot see: a second
    -- look finds it, with the lock already ours. An idle worker holds nothing, and does not get the statement ready.
    FOR v_look IN 1..CASE WHEN json_array_length(v_holds) > 0 THEN 2 ELSE 0 END LOOP
        WITH given AS MATERIALIZED (
            SELECT g.i, g.t, g.p, coalesce(g.s, true) AS s FROM json_to_recordset(v_holds) AS g(i uuid, t bigint, p json, s boolean)
            WHERE NOT g.i = ANY (v_kept)
            ORDER BY g.i
        ), held AS MATERIALIZED (
            SELECT k.at, k.until, k.starts AND g.s AS starts, k.events AND g.p IS NOT NULL AS moves, g.p, g.s
            FROM given AS g
            CROSS JOIN LATERAL (
                SELECT j.ctid AS at, v_now + least(coalesce(v_lease, q.lease_seconds), q.lease_max_seconds) * interval '1 second' AS until,
                    q.events, q.events AND j.state = 'leased' AS starts
                FROM tenure.job AS j
                JOIN tenure.queue AS q ON q.name = j.queue
                WHERE j.id = g.i AND j.token = g.t AND j.lease_until > v_cutoff
                FOR UPDATE OF j
            ) AS k
        ), kept AS (
            UPDATE tenure.job AS j
            SET lease_until = greatest(j.lease_until, h.until),
                state = CASE WHEN h.s THEN 'running' ELSE j.state END,
                started_at = CASE WHEN h.s THEN coalesce(j.started_at, v_now) ELSE j.started_at END,
                progress = coalesce(h.p, j.progress),
                updated_at = v_now
            FROM held AS h
            WHERE j.ctid = h.at
            RETURNING j.id, j.cancel_requested_at, h.starts, h.moves
        )
        SELECT v_kept || array_agg(k.id), v_cancel || array_agg(k.id) FILTER (WHERE k.cancel_requested_at IS NOT NULL),
            v_started || array_agg(k.id) FILTER (WHERE k.starts), v_moved || array_agg(k.id) FILTER (WHERE k.moves)
        INTO v_kept, v_cancel, v_started, v_moved
        FROM kept AS k;
        EXIT WHEN cardinality(v_kept) >= json_array_length(v_holds);
    END LOOP;
    IF v_started IS NOT NULL THEN
        PERFORM tenure.tell('started', v_started, v_now);
    END IF;
    IF v_moved IS NOT NULL THEN
        PERFORM tenure.tell('progress', v_moved, v_now);
    END IF;
    IF cardinality(v_kept) < json_array_length(v_holds) THEN
        SELECT coalesce(json_agg(g.i), '[]') INTO v_lost FROM json_to_recordset(v_holds) AS g(i uuid) WHERE NOT g.i = ANY (v_kept);
    END IF;
    IF p_request -> 'worker' IS NOT NULL THEN
        PERFORM tenure.beat_worker(p_request -> 'worker', json_array_length(v_holds) = 0, v_now);
        IF (p_request ->> 'news')::boolean THEN
            RETURN json_build_object('lost', v_lost, 'cancel', array_to_json(v_cancel), 'news', tenure.worker_news(
                p_request -> 'worker' ->> 'id', ARRAY(SELECT json_array_elements_text(p_request -> 'worker' -> 'queues')), v_now));
        END IF;
    END IF;
    RETURN json_build_object('lost', v_lost, 'cancel', array_to_json(v_cancel));
END
$$;

-- beat_worker: the worker's own row. A closed heartbeat gate, its own or that of a profile it serves, keeps it from being written, and is an error if that was all there was to do.
CREATE OR REPLACE FUNCTION tenure.beat_worker(p_worker json, p_alone boolean, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_gate text;
BEGIN
    SELECT min(g.name) INTO v_gate
    FROM tenure.gate AS g
    WHERE NOT g.is_open AND (g.name = 'heartbeat' OR g.name IN (
        SELECT q.profile || '.heartbeat'
        FROM tenure.queue AS q
        WHERE q.name IN (SELECT s.name FROM json_array_elements_text(p_worker -> 'queues') AS s(name))));
    IF v_gate IS NOT NULL THEN
        IF p_alone THEN
            PERFORM tenure.refuse_gate(v_gate, 'heartbeat');
        END IF;
        RETURN;
    END IF;
    INSERT INTO tenure.worker AS w (
        id, hostname, pid, queues, kinds, concurrency, version, executor_kind, status, ticks, current_job_id, info, started_at, last_seen_at
    )
    SELECT
        g.id, g.hostname, g.pid,
        ARRAY(SELECT json_array_elements_text(g.queues)), ARRAY(SELECT json_array_elements_text(g.kinds)),
        g.concurrency, g.version, g.executor_kind, g.status, 1, g.current_job_id, g.info, p_now, p_now
    FROM json_to_record(p_worker) AS g(
        id text, hostname text, pid integer, queues json, kinds json, concurrency integer, version text, executor_kind text,
        status text, current_job_id uuid, info jsonb)
    ON CONFLICT (id) DO UPDATE
    SET queues = excluded.queues,
        kinds = excluded.kinds,
        concurrency = excluded.concurrency,
        version = excluded.version,
        status = excluded.status,
        current_job_id = excluded.current_job_id,
        info = excluded.info,
        ticks = w.ticks + 1,
        last_seen_at = p_now;
END
$$;

-- beat_idle: the heartbeat of a worker that holds nothing and whose row stands as it last wrote it, along with a claim that found nothing.
-- Answers the news; null if there is no such row, or a gate is closed which may be one for heartbeats: then it has to speak for itself.
CREATE OR REPLACE FUNCTION tenure.beat_idle(p_worker text, p_now timestamptz) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_queues text[];
BEGIN
    UPDATE tenure.worker AS w
    SET ticks = w.ticks + 1,
        last_seen_at = p_now
    WHERE w.id = p_worker AND NOT EXISTS (SELECT 1 FROM tenure.gate AS g WHERE NOT g.is_open)
    RETURNING w.queues INTO v_queues;
    RETURN CASE WHEN FOUND THEN tenure.worker_news(p_worker, v_queues, p_now) END;
END
$$;

-- worker_news: what spares a worker two questions of its own. `queues` is another text whenever one of its queues was changed, made or
-- dropped; `led` is for how many seconds somebody else's lease to lead still holds, null if nobody's does.
CREATE OR REPLACE FUNCTION tenure.worker_news(p_worker text, p_queues text[], p_now timestamptz) RETURNS json
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN json_build_object(
        'queues', (
            SELECT string_agg(q.xmin::text, ' ')
            FROM tenure.queue AS q
            WHERE q.name = ANY (p_queues)),
        'led', (
            SELECT date_part('epoch', l.until) - date_part('epoch', p_now)
            FROM tenure.lease AS l
            WHERE l.name = 'leader' AND l.owner <> p_worker AND l.until > p_now));
END
$$;

-- start: leased → running, for workers that say so themselves. Takes {"holds": [{"i", "t", "p": progress}]}, answers the ids whose lease is lost.
CREATE OR REPLACE FUNCTION tenure.start(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_cutoff timestamptz := tenure.expiry_cutoff(v_now);
    v_hold record;
    v_was text;
    v_lost uuid[] := '{}';
    v_started uuid[];
BEGIN
    FOR v_hold IN SELECT g.i, g.t, g.p FROM json_to_recordset(p_request -> 'holds') AS g(i uuid, t bigint, p json) ORDER BY g.i LOOP
        SELECT j.state INTO v_was FROM tenure.job AS j
        WHERE j.id = v_hold.i AND j.token = v_hold.t AND j.lease_until > v_cutoff
        FOR UPDATE;
        IF NOT FOUND THEN
            v_lost := v_lost || v_hold.i;
            CONTINUE;
        END IF;
        UPDATE tenure.job AS j
        SET state = 'running',
            started_at = coalesce(j.started_at, v_now),
            progress = coalesce(v_hold.p, j.progress),
            updated_at = v_now
        WHERE j.id = v_hold.i;
        IF v_was = 'leased' THEN
            v_started := v_started || v_hold.i;
        END IF;
    END LOOP;
    IF v_started IS NOT NULL THEN
        PERFORM tenure.tell('started', v_started, v_now);
    END IF;
    RETURN array_to_json(v_lost);
END
$$;

-- functions/list_attempts.sql

-- list_attempts: {"job_id"} → its attempts that did not end well, oldest first.
CREATE OR REPLACE FUNCTION tenure.list_attempts(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(row_to_json(shown) ORDER BY shown.token), '[]')
    FROM (
        SELECT
            a.job_id,
            a.token,
            a.attempt,
            a.worker,
            tenure.to_us(a.claimed_at) AS claimed_at,
            tenure.to_us(a.ended_at) AS ended_at,
            a.outcome,
            a.failure_class,
            a.error,
            a.fingerprint,
            tenure.to_us(a.run_at) AS run_at
        FROM tenure.attempt AS a
        WHERE a.job_id = tenure.as_uuid(p_request ->> 'job_id')
    ) AS shown
$$;

-- functions/list_audit.sql

-- list_audit: what somebody with power did, newest first.
CREATE OR REPLACE FUNCTION tenure.list_audit(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_subject text := p_request ->> 'subject';
    v_answer json;
BEGIN
    EXECUTE 'SELECT json_agg(row_to_json(shown) ORDER BY shown.seq DESC) FROM ('
        'SELECT a.seq, tenure.to_us(a.at) AS at, a.actor, a.act, a.subject, a.reason, a.detail FROM tenure.audit AS a'
        || CASE WHEN v_subject IS NULL THEN '' ELSE ' WHERE a.subject = $1' END
        || ' ORDER BY a.seq DESC LIMIT $2) AS shown'
    INTO v_answer
    USING v_subject, v_limit;
    RETURN coalesce(v_answer, '[]');
END
$$;

-- functions/list_dead_letters.sql

-- list_dead_letters: those that match, newest first. `after` is [moved_at, id] of the last one seen;
-- one more row than `limit` asks for tells that the list goes on.
CREATE OR REPLACE FUNCTION tenure.list_dead_letters(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_triage text[] := tenure.text_list(p_request -> 'triage');
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_kinds text[] := tenure.text_list(p_request -> 'kinds');
    v_ids uuid[] := (
        SELECT array_agg(coalesce(tenure.as_uuid(t.id), '00000000-0000-0000-0000-000000000000'))
        FROM unnest(tenure.text_list(p_request -> 'ids')) AS t(id)
    );
    v_wanted text := 'true';
    v_answer json;
BEGIN
    IF v_triage IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.triage = ANY ($1)';
    END IF;
    IF v_queues IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.queue = ANY ($2)';
    END IF;
    IF v_kinds IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.kind = ANY ($3)';
    END IF;
    IF v_ids IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.id = ANY ($4)';
    END IF;
    IF p_request ->> 'fingerprint' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.fingerprint = $5';
    END IF;
    IF p_request ->> 'job_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.job_id = $6';
    END IF;
    IF p_request ->> 'after' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND (d.moved_at, d.id) < ($7, $8)';
    END IF;
    EXECUTE 'SELECT json_agg(tenure.show_dead_letter(d) ORDER BY d.moved_at DESC, d.id DESC) FROM ('
        'SELECT d.* FROM tenure.dead_letter AS d WHERE ' || v_wanted
        || ' ORDER BY d.moved_at DESC, d.id DESC LIMIT $9) AS d'
    INTO v_answer
    USING v_triage, v_queues, v_kinds, v_ids, p_request ->> 'fingerprint', tenure.as_uuid(p_request ->> 'job_id'),
        tenure.from_us((p_request -> 'after' ->> 0)::bigint), tenure.as_uuid(p_request -> 'after' ->> 1), v_limit + 1;
    RETURN coalesce(v_answer, '[]');
END
$$;

-- functions/list_effects.sql

-- list_effects: the effects of a job, or all in the given states, by job and place. `after` is [job_id, step, name] of the
-- last one seen; one more row than `limit` asks for tells that the list goes on.
CREATE OR REPLACE FUNCTION tenure.list_effects(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_states text[] := tenure.text_list(p_request -> 'states');
    v_wanted text := 'true';
    v_answer json;
BEGIN
    IF p_request ->> 'job_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND f.job_id = $1';
    END IF;
    IF v_states IS NOT NULL THEN
        v_wanted := v_wanted || ' AND f.state = ANY ($2)';
    END IF;
    IF p_request ->> 'after' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND (f.job_id, f.step, f.name) > ($3, $4, $5)';
    END IF;
    EXECUTE 'SELECT json_agg(tenure.show_effect(f) ORDER BY f.job_id, f.step, f.name) FROM ('
        'SELECT f.* FROM tenure.effect AS f WHERE ' || v_wanted || ' ORDER BY f.job_id, f.step, f.name LIMIT $6) AS f'
    INTO v_answer
    USING tenure.as_uuid(p_request ->> 'job_id'), v_states, tenure.as_uuid(p_request -> 'after' ->> 0),
        p_request -> 'after' ->> 1, p_request -> 'after' ->> 2, v_limit + 1;
    RETURN coalesce(v_answer, '[]');
END
$$;

-- functions/list_events.sql

-- list_events: events above `after`, in order.
CREATE OR REPLACE FUNCTION tenure.list_events(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_kinds text[] := tenure.text_list(p_request -> 'kinds');
    v_wanted text := 'e.seq > $1';
    v_answer json;
BEGIN
    IF p_request ->> 'job_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND e.job_id = $2';
    END IF;
    IF v_queues IS NOT NULL THEN
        v_wanted := v_wanted || ' AND e.queue = ANY ($3)';
    END IF;
    IF v_kinds IS NOT NULL THEN
        v_wanted := v_wanted || ' AND e.kind = ANY ($4)';
    END IF;
    EXECUTE 'SELECT json_agg(row_to_json(shown) ORDER BY shown.seq) FROM ('
        'SELECT e.seq, tenure.to_us(e.at) AS at, e.kind, e.job_id, e.queue, e.data FROM tenure.event AS e WHERE '
        || v_wanted || ' ORDER BY e.seq LIMIT $5) AS shown'
    INTO v_answer
    USING coalesce((p_request ->> 'after')::bigint, 0), tenure.as_uuid(p_request ->> 'job_id'), v_queues, v_kinds, v_limit;
    RETURN coalesce(v_answer, '[]');
END
$$;

-- functions/list_gates.sql

-- list_gates: the four global gates, which are open without a row, and every other that has one, by name.
CREATE OR REPLACE FUNCTION tenure.list_gates(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT json_agg(row_to_json(shown) ORDER BY shown.name COLLATE "C")
    FROM (
        SELECT
            coalesce(g.name, always.name) AS name,
            coalesce(g.is_open, true) AS is_open,
            tenure.to_us(g.updated_at) AS updated_at,
            g.actor
        FROM (VALUES ('master'), ('worker'), ('notify'), ('heartbeat')) AS always(name)
        FULL JOIN tenure.gate AS g ON g.name = always.name
    ) AS shown
$$;

-- functions/list_jobs.sql

-- list_jobs: the jobs that match, newest first by id. One more row than `limit` asks for tells that the list goes on.
--
-- The condition is put together from the fragments below, so that each question is planned for what it asks; every
-- value travels as a parameter. `retry_waiting` and `cleaned` are states that are shown, not stored.
CREATE OR REPLACE FUNCTION tenure.list_jobs(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_states text[] := tenure.text_list(p_request -> 'states');
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_kinds text[] := tenure.text_list(p_request -> 'kinds');
    v_wanted text := 'true';
    v_answer json;
BEGIN
    IF v_states && ARRAY['retry_waiting', 'cleaned'] THEN
        v_wanted := v_wanted || $w$ AND (
            j.state = ANY ($1)
            OR ('retry_waiting' = ANY ($1) AND j.state = 'queued' AND j.attempt > 0 AND j.failure_class IS NOT NULL)
            OR ('cleaned' = ANY ($1) AND j.cleaned_at IS NOT NULL)
        )$w$;
    ELSIF v_states IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.state = ANY ($1)';
    END IF;
    IF v_queues IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.queue = ANY ($2)';
    END IF;
    IF v_kinds IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.kind = ANY ($3)';
    END IF;
    IF p_request ->> 'key' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.idempotency_key = $4';
    END IF;
    IF p_request ->> 'workflow_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.workflow_id = $5';
    END IF;
    IF p_request ->> 'parent_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.parent_id = $6';
    END IF;
    IF p_request ->> 'profile' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.profile = $7';
    END IF;
    IF p_request ->> 'worker' IS NOT NULL THEN
        v_wanted := v_wanted || $w$ AND j.lease_owner = $8 AND j.state IN ('leased', 'running')$w$;
    END IF;
    IF p_request ->> 'after' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.id < $9';
    END IF;
    EXECUTE 'SELECT json_agg(tenure.show_job(j) ORDER BY j.id DESC) FROM ('
        'SELECT j.* FROM tenure.job AS j WHERE ' || v_wanted || ' ORDER BY j.id DESC LIMIT $10) AS j'
    INTO v_answer
    USING v_states, v_queues, v_kinds, p_request ->> 'key',
        tenure.as_uuid(p_request ->> 'workflow_id'), tenure.as_uuid(p_request ->> 'parent_id'),
        p_request ->> 'profile', p_request ->> 'worker', tenure.as_uuid(p_request ->> 'after'), v_limit + 1;
    RETURN coalesce(v_answer, '[]');
END
$$;

-- functions/list_queues.sql

-- list_queues: every queue, or the named ones, by name.
CREATE OR REPLACE FUNCTION tenure.list_queues(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_names text[] := tenure.text_list(p_request -> 'names');
BEGIN
    RETURN (
        SELECT coalesce(json_agg(tenure.show_queue(q) ORDER BY q.name COLLATE "C"), '[]')
        FROM tenure.queue AS q
        WHERE v_names IS NULL OR q.name = ANY (v_names)
    );
END
$$;

-- functions/list_workers.sql

-- list_workers: every worker that has a row, most recently seen first. The leader is the owner of the named lease `leader`.
CREATE OR REPLACE FUNCTION tenure.list_workers(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
BEGIN
    RETURN (
        SELECT coalesce(json_agg(row_to_json(shown) ORDER BY shown.last_seen_at DESC, shown.id), '[]')
        FROM (
            SELECT
                w.id,
                w.hostname,
                w.pid,
                w.queues,
                w.kinds,
                w.concurrency,
                w.version,
                w.executor_kind,
                w.status,
                w.current_job_id,
                w.info,
                w.ticks,
                tenure.to_us(w.started_at) AS started_at,
                tenure.to_us(w.last_seen_at) AS last_seen_at,
                EXISTS (SELECT 1 FROM tenure.waiter AS t WHERE t.worker = w.id) AS wants_wake,
                coalesce(h.held, 0) AS held,
                l.until IS NOT NULL AS is_leader,
                tenure.to_us(l.until) AS leader_until
            FROM tenure.worker AS w
            LEFT JOIN (
                SELECT j.lease_owner, count(*) AS held
                FROM tenure.job AS j
                WHERE j.state IN ('leased', 'running')
                GROUP BY j.lease_owner
            ) AS h ON h.lease_owner = w.id
            LEFT JOIN tenure.lease AS l ON l.name = 'leader' AND l.owner = w.id AND l.until > v_now
        ) AS shown
    );
END
$$;

-- functions/metrics.sql

-- roll_up: count the minutes that are over. {"minutes"} → {"until", "rows", "more"}. Bounded by what happened in them; repeated at will;
-- skipped, with "until" null, where somebody else is at it.
--
-- Invariant: a minute is counted once, with the mark that says so. A change may be committed after others that carry a later time, so
-- minutes are counted only when every transaction is over that had begun to write a minute after them; see tally_up.
CREATE OR REPLACE FUNCTION tenure.roll_up(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_minutes integer := coalesce((p_request ->> 'minutes')::integer, 60);
    v_ripe timestamptz := date_trunc('minute', v_now - interval '1 minute', 'UTC');
    v_mark tenure.metric_mark;
    v_rows bigint := 0;
BEGIN
    IF v_minutes NOT BETWEEN 1 AND 1440 THEN
        RAISE EXCEPTION 'Between 1 and 1440 minutes can be counted at once, not %.', v_minutes USING ERRCODE = 'TN007';
    END IF;
    SELECT * INTO v_mark FROM tenure.metric_mark AS m FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN json_build_object('until', NULL, 'rows', 0, 'more', false);
    END IF;
    v_mark.counted_until := coalesce(v_mark.counted_until, v_ripe - interval '1 hour');
    IF v_mark.counted_until < v_ripe - interval '30 days' AND v_mark.next_until IS NULL THEN
        v_mark.counted_until := v_ripe - interval '30 days';
    END IF;
    IF v_mark.next_until IS NOT NULL AND pg_snapshot_xmin(pg_current_snapshot()) >= v_mark.next_xid THEN
        v_rows := tenure.count_minutes(v_mark.counted_until, v_mark.next_until, v_now);
        v_mark.counted_until := v_mark.next_until;
        v_mark.next_until := NULL;
        v_mark.next_xid := NULL;
    END IF;
    IF v_mark.next_until IS NULL AND v_ripe > v_mark.counted_until THEN
        v_mark.next_until := least(v_ripe, v_mark.counted_until + v_minutes * interval '1 minute');
        v_mark.next_xid := pg_snapshot_xmax(pg_current_snapshot());
    END IF;
    UPDATE tenure.metric_mark AS m
    SET counted_until = v_mark.counted_until,
        next_until = v_mark.next_until,
        next_xid = v_mark.next_xid
    WHERE (m.counted_until, m.next_until, m.next_xid)
        IS DISTINCT FROM (v_mark.counted_until, v_mark.next_until, v_mark.next_xid);
    RETURN json_build_object(
        'until', tenure.to_us(v_mark.counted_until), 'rows', v_rows, 'more', v_mark.next_until IS NOT NULL
    );
END
$$;

-- count_minutes: write what happened from p_after until just before p_until. Created jobs are found by the time in their ids, with a
-- minute of patience for clocks that differ; ends by job_finished_idx and job_cleaned_idx; deaths by dead_letter_triage_idx, since a
-- job that was revived no longer tells of its death. Workers' silence is known of the present only.
-- Without jit: the price put on a sequential scan, where one is left, would have each count compiled for seconds.
CREATE OR REPLACE FUNCTION tenure.count_minutes(p_after timestamptz, p_until timestamptz, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_rows bigint;
BEGIN
    INSERT INTO tenure.metric AS m (minute, queue, profile, created, completed, failed, latency_seconds, heartbeat_delay_seconds)
    SELECT
        date_trunc('minute', h.at, 'UTC'), h.queue, q.profile,
        count(*) FILTER (WHERE h.what = 'created'),
        count(*) FILTER (WHERE h.what = 'completed'),
        count(*) FILTER (WHERE h.what = 'failed'),
        coalesce(sum(h.seconds) FILTER (WHERE h.what = 'completed'), 0),
        max(h.seconds) FILTER (WHERE h.what = 'silence')
    FROM (
        SELECT 'created' AS what, j.created_at AS at, j.queue, NULL::double precision AS seconds
        FROM tenure.job AS j
        WHERE j.id >= tenure.id_from(p_after - interval '1 minute') AND j.id < tenure.id_from(p_until + interval '1 minute')
            AND j.created_at >= p_after AND j.created_at < p_until
        UNION ALL
        SELECT 'completed', j.finished_at, j.queue, greatest(0, extract(epoch FROM j.finished_at - j.run_at))
        FROM tenure.job AS j
        WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.state = 'succeeded'
            AND j.finished_at >= p_after AND j.finished_at < p_until
        UNION ALL
        SELECT 'completed', j.finished_at, j.queue, greatest(0, extract(epoch FROM j.finished_at - j.run_at))
        FROM tenure.job AS j
        WHERE j.cleaned_at IS NOT NULL AND j.state = 'succeeded' AND j.finished_at >= p_after AND j.finished_at < p_until
        UNION ALL
        SELECT 'failed', d.moved_at, d.queue, NULL
        FROM tenure.dead_letter AS d
        WHERE d.triage IN ('pending', 'acknowledged', 'manual_replay', 'escalated', 'closed')
            AND d.moved_at >= p_after AND d.moved_at < p_until
        UNION ALL
        SELECT 'silence', p_until - interval '1 minute', s.queue, greatest(0, extract(epoch FROM p_now - w.last_seen_at))
        FROM tenure.worker AS w
        CROSS JOIN unnest(w.queues) AS s(queue)
        WHERE p_now < p_until + interval '5 minutes'
    ) AS h
    JOIN tenure.queue AS q ON q.name = h.queue
    GROUP BY 1, 2, 3
    ON CONFLICT (minute, queue) DO UPDATE
    SET profile = excluded.profile,
        created = excluded.created,
        completed = excluded.completed,
        failed = excluded.failed,
        latency_seconds = excluded.latency_seconds,
        heartbeat_delay_seconds = excluded.heartbeat_delay_seconds;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END
$$;

-- id_from: the lowest UUIDv7 that may have been made at that moment.
CREATE OR REPLACE FUNCTION tenure.id_from(p_moment timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT rpad(lpad(to_hex(tenure.to_us(p_moment) / 1000), 12, '0'), 32, '0')::uuid $$;

-- list_metrics: counted minutes. {"minutes", "queues", "limit"} → [[minute, queue, profile, created, completed, failed,
-- latency_average, error_rate, heartbeat_delay], …], newest first.
CREATE OR REPLACE FUNCTION tenure.list_metrics(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_since timestamptz := date_trunc('minute', tenure.now(), 'UTC')
        - coalesce((p_request ->> 'minutes')::double precision, 60) * interval '1 minute';
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_limit bigint := tenure.page_limit(p_request);
BEGIN
    RETURN (
        SELECT coalesce(json_agg(json_build_array(
            tenure.to_us(m.minute), m.queue, m.profile, m.created, m.completed, m.failed,
            m.latency_seconds / nullif(m.completed, 0),
            m.failed::double precision / nullif(m.completed + m.failed, 0),
            m.heartbeat_delay_seconds
        ) ORDER BY m.minute DESC, m.queue COLLATE "C"), '[]')
        FROM (
            SELECT * FROM tenure.metric AS t
            WHERE t.minute >= v_since AND (v_queues IS NULL OR t.queue = ANY (v_queues))
            ORDER BY t.minute DESC, t.queue COLLATE "C"
            LIMIT v_limit
        ) AS m
    );
END
$$;

-- functions/now_us.sql

-- now_us: the store's clock for clients that want to read it.
CREATE OR REPLACE FUNCTION tenure.now_us() RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT tenure.to_us(tenure.now()) $$;

-- functions/pause_queues.sql

-- pause_queues: {"names", "paused", "actor", "reason"} → the names that changed. A resumed queue wakes whoever waits for it.
CREATE OR REPLACE FUNCTION tenure.pause_queues(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_names text[] := tenure.text_list(p_request -> 'names');
    v_paused boolean := (p_request ->> 'paused')::boolean;
    v_changed text[] := '{}';
    v_name text;
    v_queue tenure.queue;
BEGIN
    FOR v_name IN SELECT DISTINCT n.name COLLATE "C" FROM unnest(v_names) AS n(name) ORDER BY 1 LOOP
        SELECT * INTO v_queue FROM tenure.queue AS q WHERE q.name = v_name FOR UPDATE;
        IF NOT FOUND THEN
            PERFORM tenure.refuse_unknown_queue(v_name);
        END IF;
        CONTINUE WHEN (v_queue.paused_at IS NOT NULL) = v_paused;
        UPDATE tenure.queue AS q
        SET paused_at = CASE WHEN v_paused THEN v_now END,
            paused_by = CASE WHEN v_paused THEN p_request ->> 'actor' END,
            updated_at = v_now
        WHERE q.name = v_name;
        PERFORM tenure.write_audit(
            v_now, p_request ->> 'actor', CASE WHEN v_paused THEN 'pause_queue' ELSE 'resume_queue' END,
            v_name, p_request ->> 'reason', NULL
        );
        IF NOT v_paused THEN
            PERFORM tenure.notify(v_queue, NULL);
        END IF;
        v_changed := v_changed || v_name;
    END LOOP;
    RETURN array_to_json(v_changed);
END
$$;

-- functions/pick.sql

-- pick: lock the next claimable rows of a queue, in order, skipping what others hold. Answers where they are, null if there are none.
-- Each shape of the look is a statement of its own, so that each keeps the plan it needs.
CREATE OR REPLACE FUNCTION tenure.pick(
    p_queue tenure.queue, p_limit integer, p_kinds text[], p_affinity text[],
    p_mark_rank bigint, p_mark_run_at timestamptz, p_mark_id uuid
) RETURNS tid[]
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_queue.concurrency IS NOT NULL OR p_queue.concurrency_per_key IS NOT NULL THEN
        RETURN tenure.pick_limited(p_queue, p_limit, p_kinds, p_affinity);
    ELSIF p_mark_rank IS NOT NULL THEN
        RETURN (SELECT array_agg(p.at) FROM (
            SELECT j.ctid AS at
            FROM tenure.job AS j
            WHERE j.queue = p_queue.name AND j.state = 'queued' AND j.is_due
                AND j.rank = p_mark_rank AND (j.run_at, j.id) > (p_mark_run_at, p_mark_id)
            ORDER BY j.run_at, j.id
            LIMIT p_limit
            FOR UPDATE SKIP LOCKED
        ) AS p);
    ELSIF p_kinds IS NULL AND p_affinity IS NULL THEN
        RETURN (SELECT array_agg(p.at) FROM (
            SELECT j.ctid AS at
            FROM tenure.job AS j
            WHERE j.queue = p_queue.name AND j.state = 'queued' AND j.is_due
            ORDER BY j.rank, j.run_at, j.id
            LIMIT p_limit
            FOR UPDATE SKIP LOCKED
        ) AS p);
    END IF;
    RETURN (SELECT array_agg(p.at) FROM (
        SELECT j.ctid AS at
        FROM tenure.job AS j
        WHERE j.queue = p_queue.name AND j.state = 'queued' AND j.is_due
            AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
            AND (p_affinity IS NULL OR j.affinity_key = ANY (p_affinity)
                OR (j.affinity_key IS NULL AND array_position(p_affinity, NULL) IS NOT NULL))
        ORDER BY j.rank, j.run_at, j.id
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ) AS p);
END
$$;

-- pick_limited: the same under a limit on how many jobs of the queue, or with one concurrency key, may be held at once.
-- Exact across machines: whoever picks from such a queue holds its advisory lock until the commit, so counts cannot cross.
-- Looks at the first 5,000 claimable rows; a key whose jobs fill them all lets the rest wait until it has room.
CREATE OR REPLACE FUNCTION tenure.pick_limited(p_queue tenure.queue, p_limit integer, p_kinds text[], p_affinity text[]) RETURNS tid[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_room bigint := p_limit;
    v_ids uuid[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('tenure.queue:' || p_queue.name, 0));
    IF p_queue.concurrency IS NOT NULL THEN
        SELECT least(p_limit, p_queue.concurrency - count(*)) INTO v_room
        FROM tenure.job AS j
        WHERE j.state IN ('leased', 'running') AND j.queue = p_queue.name;
        IF v_room <= 0 THEN
            RETURN NULL;
        END IF;
    END IF;
    WITH held AS MATERIALIZED (
        SELECT j.concurrency_key, count(*) AS jobs
        FROM tenure.job AS j
        WHERE j.state IN ('leased', 'running') AND j.queue = p_queue.name AND j.concurrency_key IS NOT NULL
        GROUP BY j.concurrency_key
    ), due AS MATERIALIZED (
        SELECT j.id, j.concurrency_key, j.rank, j.run_at
        FROM tenure.job AS j
        WHERE j.queue = p_queue.name AND j.state = 'queued' AND j.is_due
            AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
            AND (p_affinity IS NULL OR j.affinity_key = ANY (p_affinity)
                OR (j.affinity_key IS NULL AND array_position(p_affinity, NULL) IS NOT NULL))
        ORDER BY j.rank, j.run_at, j.id
        LIMIT 5000
    ), turn AS MATERIALIZED (
        SELECT d.*, row_number() OVER (PARTITION BY d.concurrency_key ORDER BY d.rank, d.run_at, d.id) AS nth FROM due AS d
    )
    SELECT array_agg(f.id) INTO v_ids FROM (
        SELECT t.id
        FROM turn AS t
        LEFT JOIN held AS h ON h.concurrency_key = t.concurrency_key
        WHERE t.concurrency_key IS NULL
            OR p_queue.concurrency_per_key IS NULL
            OR t.nth + coalesce(h.jobs, 0) <= p_queue.concurrency_per_key
        ORDER BY t.rank, t.run_at, t.id
        LIMIT v_room
    ) AS f;
    IF v_ids IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT array_agg(p.at) FROM (
        SELECT j.ctid AS at FROM tenure.job AS j WHERE j.id = ANY (v_ids) AND j.state = 'queued' FOR UPDATE SKIP LOCKED
    ) AS p);
END
$$;

-- functions/profile.sql

-- What profiles are built from. Nothing here knows one by name: a profile is a row, views over tenure.shown, and calls of these.

-- install_profile: {"name", "title", "policy", "words", "settings", "shows", "checksum", "queues", "closed", "actor"} → what is new.
-- Repeated, it changes words and checksum only: queues, gates and settings stay as operators have set them.
CREATE OR REPLACE FUNCTION tenure.install_profile(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_name text := p_request ->> 'name';
    v_actor text := p_request ->> 'actor';
    v_is_new boolean := NOT EXISTS (SELECT 1 FROM tenure.profile AS p WHERE p.name = v_name);
    v_queue text;
    v_gate text;
    v_queues text[] := '{}';
    v_gates text[] := '{}';
BEGIN
    PERFORM tenure.write_audit(v_now, v_actor, 'install_profile', v_name, NULL, json_build_object('checksum', p_request ->> 'checksum'));
    INSERT INTO tenure.profile AS p (name, title, policy, words, settings, shows, checksum, actor, installed_at, updated_at)
    VALUES (
        v_name, p_request ->> 'title', p_request -> 'policy', p_request -> 'words', (p_request -> 'settings')::jsonb,
        coalesce(tenure.text_list(p_request -> 'shows'), '{}'), p_request ->> 'checksum', v_actor, v_now, v_now
    )
    ON CONFLICT (name) DO UPDATE
    SET title = excluded.title,
        policy = excluded.policy,
        words = excluded.words,
        settings = excluded.settings || p.settings,
        shows = excluded.shows,
        checksum = excluded.checksum,
        actor = excluded.actor,
        updated_at = excluded.updated_at;
    FOR v_queue IN SELECT q.name FROM json_array_elements_text(p_request -> 'queues') AS q(name) LOOP
        CONTINUE WHEN EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.name = v_queue AND q.profile = v_name);
        IF EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.name = v_queue) THEN
            RAISE EXCEPTION 'Queue % is there already and belongs to another profile, so profile % was not installed.',
                quote_literal(v_queue), quote_literal(v_name)
                USING ERRCODE = 'TN008', HINT = 'Give that queue to the profile with `tenure queues set`, or name another in the profile file.';
        END IF;
        PERFORM tenure.set_queues(json_build_object('policies', json_build_object(v_queue, p_request -> 'policy'), 'actor', v_actor));
        v_queues := v_queues || v_queue;
    END LOOP;
    FOR v_gate IN SELECT v_name || '.' || g.name FROM json_array_elements_text(p_request -> 'closed') AS g(name) LOOP
        CONTINUE WHEN EXISTS (SELECT 1 FROM tenure.gate AS g WHERE g.name = v_gate);
        PERFORM tenure.set_gate(json_build_object('name', v_gate, 'is_open', false, 'actor', v_actor, 'reason', 'installed closed'));
        v_gates := v_gates || v_gate;
    END LOOP;
    PERFORM tenure.tally_up(v_now);
    RETURN json_build_object('is_new', v_is_new, 'queues', array_to_json(v_queues), 'gates', array_to_json(v_gates));
END
$$;

-- list_profiles: every profile that is installed here, by name.
CREATE OR REPLACE FUNCTION tenure.list_profiles(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(json_build_object(
        'name', p.name, 'title', p.title, 'words', p.words, 'settings', p.settings, 'shows', p.shows, 'checksum', p.checksum,
        'actor', p.actor, 'installed_at', tenure.to_us(p.installed_at), 'updated_at', tenure.to_us(p.updated_at),
        'queues', (SELECT coalesce(json_agg(q.name ORDER BY q.name), '[]') FROM tenure.queue AS q WHERE q.profile = p.name)
    ) ORDER BY p.name), '[]')
    FROM tenure.profile AS p
$$;

-- new_id: a UUIDv7 of the database's making, for clients that send none.
CREATE OR REPLACE FUNCTION tenure.new_id(p_now timestamptz) RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT (lpad(to_hex(tenure.to_us(p_now) / 1000), 12, '0') || '7' || substr(r.hex, 14, 3) || substr(r.hex, 17))::uuid
    FROM (SELECT replace(gen_random_uuid()::text, '-', '') AS hex) AS r
$$;

-- put_job: one job into a queue that must belong to the profile. Answers {"id", "duplicate"}.
-- p_job: {"i", "p", "r", "k", "m", "a", "x"} as enqueue has it; the id may be left out.
CREATE OR REPLACE FUNCTION tenure.put_job(p_profile text, p_queue text, p_kind text, p_job json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_id uuid := coalesce((p_job ->> 'i')::uuid, tenure.new_id(tenure.now()));
    v_answer json;
    v_holder uuid;
BEGIN
    IF coalesce(btrim(p_kind), '') = '' THEN
        RAISE EXCEPTION 'A job needs a kind that says which handler it is for; it is empty. Nothing was enqueued.' USING ERRCODE = 'TN007';
    END IF;
    IF EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.name = p_queue AND q.profile <> p_profile) THEN
        RAISE EXCEPTION 'Queue % does not belong to profile %. Nothing was enqueued.', quote_literal(p_queue), quote_literal(p_profile)
            USING ERRCODE = 'TN010';
    END IF;
    v_answer := tenure.enqueue(json_build_object('groups', json_build_array(json_build_object(
        'queue', p_queue, 'kind', p_kind, 'jobs', json_build_array((p_job::jsonb || jsonb_build_object('i', v_id)))))));
    v_holder := (v_answer #>> '{duplicates,0,1}')::uuid;
    RETURN json_build_object('id', coalesce(v_holder, v_id), 'duplicate', v_holder IS NOT NULL);
END
$$;

-- queue_like: a queue with the policy of p_like, and so of its profile, unless there is one of that name.
CREATE OR REPLACE FUNCTION tenure.queue_like(p_name text, p_like text, p_actor text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.name = p_name) THEN
        RETURN;
    END IF;
    PERFORM tenure.set_queues(json_build_object('only_new', true, 'actor', p_actor, 'policies', json_build_object(p_name, (
        SELECT to_jsonb(q) - '{name,paused_at,paused_by,created_at,updated_at}'::text[] FROM tenure.queue AS q WHERE q.name = p_like))));
END
$$;

-- grant_of: the token of the grant under which p_owner holds the job, null if it holds none. Locks the job.
-- With p_token that grant alone counts, whoever asks; without it the owner's name does, so owners must be unique per process.
CREATE OR REPLACE FUNCTION tenure.grant_of(p_profile text, p_id uuid, p_owner text, p_token bigint) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT j.token
    FROM tenure.job AS j
    WHERE j.id = p_id
        AND j.profile = p_profile
        AND j.state IN ('leased', 'running')
        AND j.lease_until > tenure.expiry_cutoff(tenure.now())
        AND j.lease_owner = p_owner
        AND j.token = coalesce(p_token, j.token)
    FOR UPDATE
$$;

-- settle_one: end a grant. p_outcome as settle_rest has it, without id and token. Answers the state the job is in now, null if lost.
CREATE OR REPLACE FUNCTION tenure.settle_one(p_id uuid, p_token bigint, p_outcome jsonb) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    IF p_token IS NOT NULL THEN
        PERFORM tenure.settle_outcomes(
            json_build_object('rest', jsonb_build_array(p_outcome || jsonb_build_object('i', p_id, 't', p_token))), tenure.now());
        RETURN (SELECT j.state FROM tenure.job AS j WHERE j.id = p_id AND j.token = p_token);
    END IF;
    RETURN NULL;
END
$$;

-- closed_gate: the first of the profile's gates that is closed, or of the global ones of the same names; null if none is.
CREATE OR REPLACE FUNCTION tenure.closed_gate(p_profile text, p_gates text[]) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT g.name
    FROM tenure.gate AS g
    WHERE NOT g.is_open AND (g.name = ANY (p_gates) OR g.name IN (SELECT p_profile || '.' || n.name FROM unnest(p_gates) AS n(name)))
    ORDER BY g.name
    LIMIT 1
$$;

-- hand_over: everything in a profile's schema goes to tenure_owner and away from PUBLIC; then the rights in p_rights are granted:
-- {"EXECUTE ON FUNCTION x": "worker admin", "SELECT ON y": "reader"}. Where roles could not be created, nothing is granted.
-- Runs with the rights of whoever installs, and so can do nothing that they could not.
CREATE OR REPLACE FUNCTION tenure.hand_over(p_schema text, p_rights jsonb) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_object record;
    v_right record;
    v_role text;
BEGIN
    EXECUTE format('REVOKE ALL ON SCHEMA %I FROM PUBLIC', p_schema);
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM PUBLIC', p_schema);
    EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA %I FROM PUBLIC', p_schema);
    BEGIN
        IF EXISTS (SELECT 1 FROM pg_roles AS r WHERE r.rolname = 'tenure_owner') THEN
            -- The schema first: only who may create things in it can be given what is in it.
            EXECUTE format('ALTER SCHEMA %I OWNER TO tenure_owner', p_schema);
            FOR v_object IN
                SELECT format('ALTER %s %s OWNER TO tenure_owner',
                    CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, c.oid::regclass) AS statement
                FROM pg_class AS c
                WHERE c.relnamespace = p_schema::regnamespace AND c.relkind IN ('r', 'v') AND c.relowner <> 'tenure_owner'::regrole
                UNION ALL
                SELECT format('ALTER ROUTINE %s OWNER TO tenure_owner', p.oid::regprocedure)
                FROM pg_proc AS p
                WHERE p.pronamespace = p_schema::regnamespace AND p.proowner <> 'tenure_owner'::regrole
                UNION ALL
                SELECT format('ALTER TYPE %s OWNER TO tenure_owner', t.oid::regtype)
                FROM pg_type AS t
                WHERE t.typnamespace = p_schema::regnamespace AND t.typtype = 'e' AND t.typowner <> 'tenure_owner'::regrole
            LOOP
                EXECUTE v_object.statement;
            END LOOP;
        END IF;
    EXCEPTION WHEN insufficient_privilege THEN
        RAISE WARNING 'The schema % stays with %, because it may not be handed to tenure_owner: %', p_schema, current_user, SQLERRM;
    END;
    FOREACH v_role IN ARRAY ARRAY['tenure_producer', 'tenure_worker', 'tenure_reader', 'tenure_operator', 'tenure_admin'] LOOP
        CONTINUE WHEN NOT EXISTS (SELECT 1 FROM pg_roles AS r WHERE r.rolname = v_role);
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM %I', p_schema, v_role);
        EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA %I FROM %I', p_schema, v_role);
        FOR v_right IN
            SELECT e.key AS what
            FROM jsonb_each_text(p_rights) AS e
            WHERE substr(v_role, 8) = ANY (string_to_array(e.value, ' '))
        LOOP
            EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', p_schema, v_role);
            EXECUTE format('GRANT %s TO %I', regexp_replace(v_right.what, '( ON (?:FUNCTION )?)', '\1' || quote_ident(p_schema) || '.'), v_role);
        END LOOP;
    END LOOP;
END
$$;

-- functions/prune.sql

-- prune: retention, in bounded batches. {"limit", "older_than_seconds", "delete_after_seconds", "worker_seconds", "metric_seconds"} →
-- {"cleaned", "deleted", "events", "workers", "metrics", "more"}.
CREATE OR REPLACE FUNCTION tenure.prune(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_limit bigint := tenure.page_limit(p_request);
    v_worker_seconds double precision := coalesce((p_request ->> 'worker_seconds')::double precision, 86400);
    v_delete_after double precision := (p_request ->> 'delete_after_seconds')::double precision;
    v_cleaned bigint;
    v_deleted bigint[] := '{0,0}';
    v_workers integer;
    v_metrics bigint;
BEGIN
    v_cleaned := tenure.clean_jobs((p_request ->> 'older_than_seconds')::double precision, v_limit, v_now);
    IF v_delete_after IS NOT NULL THEN
        v_deleted := tenure.delete_jobs(v_delete_after, v_limit, v_now);
    END IF;
    v_workers := cardinality(tenure.remove_silent_workers(v_worker_seconds, v_limit, v_now));
    v_metrics := tenure.drop_metrics(coalesce((p_request ->> 'metric_seconds')::double precision, 2592000), v_limit, v_now);
    IF EXISTS (SELECT 1 FROM tenure.profile) THEN
        PERFORM tenure.tally_up(v_now);
    END IF;
    RETURN json_build_object(
        'cleaned', v_cleaned, 'deleted', v_deleted[1], 'events', v_deleted[2], 'workers', v_workers,
        'metrics', v_metrics,
        'more', v_cleaned >= v_limit OR v_deleted[1] >= v_limit OR v_workers >= v_limit OR v_metrics >= v_limit
    );
END
$$;

-- clean_jobs: take payload, result and errors from jobs that ended longer ago than their queue retains. The row stays, and so does
-- its key. A job with a dead letter that is not closed keeps everything: somebody may still need it. What is locked is left for
-- the next time, so a revive and a prune never wait for each other.
CREATE OR REPLACE FUNCTION tenure.clean_jobs(p_older_than double precision, p_limit bigint, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_ids uuid[];
BEGIN
    v_ids := ARRAY(
        SELECT j.id
        FROM tenure.job AS j
        JOIN tenure.queue AS q ON q.name = j.queue
        WHERE j.finished_at IS NOT NULL
            AND j.cleaned_at IS NULL
            AND j.finished_at <= p_now - coalesce(p_older_than, q.retain_seconds) * interval '1 second'
            AND NOT EXISTS (SELECT 1 FROM tenure.dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
        ORDER BY j.finished_at
        LIMIT p_limit
        FOR UPDATE OF j SKIP LOCKED
    );
    UPDATE tenure.job AS j
    SET payload = NULL,
        result = NULL,
        result_summary = NULL,
        progress = NULL,
        last_error = NULL,
        cleaned_at = p_now,
        updated_at = p_now
    WHERE j.id = ANY (v_ids);
    UPDATE tenure.attempt AS a SET error = NULL WHERE a.job_id = ANY (v_ids) AND a.error IS NOT NULL;
    PERFORM tenure.tally_cleaned(v_ids, false);
    RETURN cardinality(v_ids);
END
$$;

-- delete_jobs: remove cleaned rows that ended longer ago than that, with their attempts, effects and events. Answers {jobs, events}.
CREATE OR REPLACE FUNCTION tenure.delete_jobs(p_after double precision, p_limit bigint, p_now timestamptz) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_ids uuid[];
    v_events bigint;
BEGIN
    v_ids := ARRAY(
        SELECT j.id
        FROM tenure.job AS j
        WHERE j.cleaned_at IS NOT NULL
            AND j.finished_at <= p_now - p_after * interval '1 second'
            AND NOT EXISTS (SELECT 1 FROM tenure.dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
        ORDER BY j.finished_at
        LIMIT p_limit
        FOR UPDATE OF j SKIP LOCKED
    );
    PERFORM tenure.tally_cleaned(v_ids, true);
    DELETE FROM tenure.job AS j WHERE j.id = ANY (v_ids);
    DELETE FROM tenure.attempt AS a WHERE a.job_id = ANY (v_ids);
    DELETE FROM tenure.effect AS f WHERE f.job_id = ANY (v_ids);
    DELETE FROM tenure.event AS e WHERE e.job_id = ANY (v_ids);
    GET DIAGNOSTICS v_events = ROW_COUNT;
    RETURN ARRAY[cardinality(v_ids)::bigint, v_events];
END
$$;

-- drop_metrics: remove the oldest minutes that lie further back than that. Answers how many rows went.
CREATE OR REPLACE FUNCTION tenure.drop_metrics(p_after double precision, p_limit bigint, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_rows bigint;
BEGIN
    -- Materialised: a plan that runs the inner look again would find other rows then, and take more than asked for.
    WITH old AS MATERIALIZED (
        SELECT t.minute, t.queue
        FROM tenure.metric AS t
        WHERE t.minute <= p_now - p_after * interval '1 second'
        ORDER BY t.minute, t.queue
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM tenure.metric AS m
    USING old
    WHERE m.minute = old.minute AND m.queue = old.queue;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END
$$;

-- functions/record_effect.sql

-- record_effect: {"job_id", "token", "effect": {"name", "state", "step", "args", "result", "error", "key"}} → the row as it stands,
-- null if the lease is lost.
CREATE OR REPLACE FUNCTION tenure.record_effect(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_job_id uuid := tenure.as_uuid(p_request ->> 'job_id');
    v_token bigint := (p_request ->> 'token')::bigint;
BEGIN
    IF tenure.held_queue(v_job_id, v_token, v_now) IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN tenure.show_effect(tenure.put_effect(v_job_id, v_token, p_request -> 'effect', v_now));
END
$$;

-- put_effect: write one row of the ledger for a job whose token was checked. The first record of a place fixes args and key; later
-- ones move the state and add result or error. `intended` where a row stands changes nothing: the answer tells how far an earlier
-- attempt got. Without a key of its own, the place is the key.
CREATE OR REPLACE FUNCTION tenure.put_effect(p_job_id uuid, p_token bigint, p_effect json, p_now timestamptz) RETURNS tenure.effect
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_step text := coalesce(p_effect ->> 'step', '');
    v_name text := p_effect ->> 'name';
    v_row tenure.effect;
BEGIN
    INSERT INTO tenure.effect AS f (job_id, step, name, state, token, key, args, result, error, intended_at, updated_at)
    VALUES (
        p_job_id, v_step, v_name, p_effect ->> 'state', p_token,
        coalesce(p_effect ->> 'key', p_job_id || ':' || v_step || ':' || v_name),
        coalesce(p_effect -> 'args', 'null'), p_effect -> 'result', p_effect ->> 'error', p_now, p_now
    )
    ON CONFLICT (job_id, step, name) DO UPDATE
    SET state = excluded.state,
        token = excluded.token,
        result = coalesce(excluded.result, f.result),
        error = coalesce(excluded.error, f.error),
        updated_at = excluded.updated_at
    WHERE excluded.state <> 'intended'
    RETURNING f.* INTO v_row;
    IF NOT FOUND THEN
        SELECT * INTO STRICT v_row FROM tenure.effect AS f WHERE f.job_id = p_job_id AND f.step = v_step AND f.name = v_name;
    END IF;
    RETURN v_row;
END
$$;

-- functions/release_lease.sql

-- release_lease: give a named lease back, if it is still the asker's in that term. The row stays, because the term must go on rising.
CREATE OR REPLACE FUNCTION tenure.release_lease(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    UPDATE tenure.lease AS l
    SET until = least(l.until, tenure.now())
    WHERE l.name = p_request ->> 'name'
        AND l.owner = p_request ->> 'owner'
        AND l.term = (p_request ->> 'term')::bigint;
    RETURN to_json(FOUND);
END
$$;

-- functions/remove_workers.sql

-- remove_workers: {"ids", "unseen_seconds"} → who was removed. What they hold is taken back first.
CREATE OR REPLACE FUNCTION tenure.remove_workers(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_unseen double precision := (p_request ->> 'unseen_seconds')::double precision;
    v_removed text[];
BEGIN
    v_removed := tenure.remove_these_workers(coalesce(tenure.text_list(p_request -> 'ids'), '{}'), 'infinity', v_now);
    IF v_unseen IS NOT NULL THEN
        v_removed := v_removed || tenure.remove_silent_workers(v_unseen, NULL, v_now);
    END IF;
    RETURN array_to_json(v_removed);
END
$$;

-- remove_silent_workers: those not seen for so long. For a while after the server started nobody counts as silent, nor while the gate
-- `heartbeat` is closed: they could not speak.
CREATE OR REPLACE FUNCTION tenure.remove_silent_workers(p_unseen double precision, p_limit bigint, p_now timestamptz) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_before timestamptz := tenure.expiry_cutoff(p_now) - p_unseen * interval '1 second';
BEGIN
    IF EXISTS (SELECT 1 FROM tenure.gate AS g WHERE g.name = 'heartbeat' AND NOT g.is_open) THEN
        RETURN '{}';
    END IF;
    RETURN tenure.remove_these_workers(
        ARRAY(SELECT w.id FROM tenure.worker AS w WHERE w.last_seen_at <= v_before ORDER BY w.last_seen_at LIMIT p_limit), v_before, p_now
    );
END
$$;

-- remove_these_workers: the rows go; jobs first, in the order of their ids, then waiters, then workers, as the locks ask for.
-- A worker that was seen after p_before, because it has spoken meanwhile, stays and keeps its jobs.
CREATE OR REPLACE FUNCTION tenure.remove_these_workers(p_ids text[], p_before timestamptz, p_now timestamptz) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_job tenure.job;
    v_removed text[];
BEGIN
    FOR v_job IN
        SELECT j.*
        FROM tenure.job AS j
        WHERE j.state IN ('leased', 'running') AND j.lease_owner = ANY (p_ids)
        ORDER BY j.id
        FOR UPDATE
    LOOP
        -- Asked after the row was locked, in a statement of its own: the one above may have waited, and knows only the time before.
        CONTINUE WHEN EXISTS (SELECT 1 FROM tenure.worker AS w WHERE w.id = v_job.lease_owner AND w.last_seen_at > p_before);
        PERFORM tenure.finish(
            v_job, 'expire', 'crash', format('Worker %s was removed while it held the job.', v_job.lease_owner), NULL, NULL, p_now
        );
    END LOOP;
    PERFORM 1 FROM tenure.waiter AS t WHERE t.worker = ANY (p_ids) ORDER BY t.queue, t.worker FOR UPDATE;
    WITH gone AS (
        DELETE FROM tenure.worker AS w WHERE w.id = ANY (p_ids) AND w.last_seen_at <= p_before RETURNING w.id
    )
    SELECT coalesce(array_agg(gone.id ORDER BY gone.id), '{}') INTO v_removed FROM gone;
    DELETE FROM tenure.waiter AS t WHERE t.worker = ANY (v_removed);
    RETURN v_removed;
END
$$;

-- functions/resolve_effect.sql

-- resolve_effect: {"job_id", "step", "name", "outcome", "result", "actor", "note"} → the row. What a person found out about an effect
-- whose outcome is not known; the job that waits for it is woken. An effect that is confirmed stays so, and while a worker holds the
-- job it decides itself: the job's row is locked meanwhile, so no claim comes in between.
CREATE OR REPLACE FUNCTION tenure.resolve_effect(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_job_id uuid := tenure.as_uuid(p_request ->> 'job_id');
    v_step text := coalesce(p_request ->> 'step', '');
    v_name text := p_request ->> 'name';
    v_outcome text := p_request ->> 'outcome';
    v_state text := CASE v_outcome WHEN 'confirmed' THEN 'confirmed' WHEN 'retry' THEN 'intended' WHEN 'failed' THEN 'failed' END;
    v_row tenure.effect;
    v_job text;
BEGIN
    IF v_state IS NULL THEN
        RAISE EXCEPTION 'outcome: % is none of confirmed, retry, failed. Nothing was changed.', v_outcome USING ERRCODE = 'TN007';
    END IF;
    SELECT j.state INTO v_job FROM tenure.job AS j WHERE j.id = v_job_id FOR UPDATE;
    SELECT * INTO v_row FROM tenure.effect AS f WHERE f.job_id = v_job_id AND f.step = v_step AND f.name = v_name FOR UPDATE;
    IF v_job IS NULL OR v_row.name IS NULL THEN
        RAISE EXCEPTION 'Job % has no effect % to resolve. `tenure jobs show` lists them.', v_job_id, v_name USING ERRCODE = 'TN009';
    ELSIF v_row.state = 'confirmed' AND v_state <> 'confirmed' THEN
        RAISE EXCEPTION 'Effect % of job % is confirmed, so it stays so.', v_name, v_job_id USING ERRCODE = 'TN008';
    ELSIF v_job IN ('leased', 'running') THEN
        RAISE EXCEPTION 'Job % is held by a worker, which decides about % itself.', v_job_id, v_name USING ERRCODE = 'TN008';
    END IF;
    IF v_row.state <> 'confirmed' THEN
        UPDATE tenure.effect AS f
        SET state = v_state,
            result = CASE v_state WHEN 'failed' THEN json_build_object('given_up_by', p_request ->> 'actor') ELSE p_request -> 'result' END,
            error = p_request ->> 'note',
            updated_at = v_now
        WHERE f.job_id = v_job_id AND f.step = v_step AND f.name = v_name
        RETURNING f.* INTO v_row;
        PERFORM tenure.write_audit(
            v_now, p_request ->> 'actor', 'resolve_effect', v_job_id::text, p_request ->> 'note',
            json_build_object('step', v_step, 'name', v_name, 'outcome', v_outcome)
        );
    END IF;
    PERFORM tenure.wake(json_build_object('waiting_for', concat_ws(':', 'effect', v_job_id, nullif(v_step, ''), v_name)));
    RETURN tenure.show_effect(v_row);
END
$$;

-- functions/revive.sql

-- revive: failed, dead, cancelled → queued, an operator's act. {"job_ids", "actor", "reason"} → [[id, token, state, run_at], …] in the
-- order of the ids; state null: left alone, and the audit row says why.
CREATE OR REPLACE FUNCTION tenure.revive(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_id text;
    v_job tenure.job;
    v_from text;
    v_why text;
    v_answers json[] := '{}';
BEGIN
    FOR v_id IN SELECT DISTINCT e.value COLLATE "C" FROM json_array_elements_text(p_request -> 'job_ids') AS e ORDER BY 1 LOOP
        SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = tenure.as_uuid(v_id) FOR UPDATE;
        v_from := v_job.state;
        v_why := tenure.why_not_revive(v_job);
        IF v_why IS NULL THEN
            BEGIN
                v_job := tenure.queue_again(v_job, v_now);
            EXCEPTION WHEN unique_violation THEN
                v_why := 'another job holds its key';
            END;
        END IF;
        PERFORM tenure.write_audit(
            v_now, p_request ->> 'actor', 'revive', v_id, p_request ->> 'reason',
            json_build_object('from', v_from, 'to', CASE WHEN v_why IS NULL THEN 'queued' ELSE v_from END, 'why', v_why)
        );
        IF v_why IS NULL THEN
            UPDATE tenure.dead_letter AS d
            SET triage = 'manual_replay',
                triage_note = coalesce(p_request ->> 'reason', d.triage_note),
                triaged_at = v_now,
                triaged_by = p_request ->> 'actor'
            WHERE d.job_id = v_job.id AND d.triage = 'pending';
            v_answers := v_answers || json_build_array(v_id, v_job.token, v_job.state, tenure.to_us(v_job.run_at));
        ELSE
            v_answers := v_answers || json_build_array(v_id, coalesce(v_job.token, 0), NULL, NULL);
        END IF;
    END LOOP;
    RETURN array_to_json(v_answers);
END
$$;

-- why_not_revive: why this job must stay as it is; null if it may be revived. A row of nulls is a job that is not there.
CREATE OR REPLACE FUNCTION tenure.why_not_revive(p_job tenure.job) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT CASE
        WHEN (p_job).id IS NULL THEN 'there is no such job'
        WHEN (p_job).state NOT IN ('failed', 'dead', 'cancelled') THEN 'it is ' || (p_job).state
        WHEN (p_job).cleaned_at IS NOT NULL THEN 'its payload was pruned'
        WHEN (SELECT q.revive FROM tenure.queue AS q WHERE q.name = (p_job).queue) = 'clone' THEN 'its queue allows only a clone'
    END
$$;

-- queue_again: an ended job as if it had just been enqueued; its key is taken again, which the unique index may refuse.
CREATE OR REPLACE FUNCTION tenure.queue_again(p_job tenure.job, p_now timestamptz) RETURNS tenure.job
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_queue tenure.queue;
    v_job tenure.job;
BEGIN
    SELECT * INTO STRICT v_queue FROM tenure.queue AS q WHERE q.name = p_job.queue;
    UPDATE tenure.job AS j
    SET state = 'queued',
        attempt = 0,
        crashes = 0,
        run_at = p_now,
        is_due = true,
        finished_at = NULL,
        started_at = NULL,
        claimed_at = NULL,
        cancel_requested_at = NULL,
        failure_class = NULL,
        dedup_slot = CASE
            WHEN j.idempotency_key IS NULL OR j.dedup_slot IS NOT NULL THEN j.dedup_slot
            ELSE tenure.slot_of(v_queue.key_scope, v_queue.key_space, v_queue.profile, j.kind, j.idempotency_key)
        END,
        updated_at = p_now
    WHERE j.id = p_job.id
    RETURNING j.* INTO v_job;
    IF v_queue.events THEN
        PERFORM tenure.tell('revived', ARRAY[v_job.id], p_now);
    END IF;
    PERFORM tenure.notify(v_queue, NULL);
    RETURN v_job;
END
$$;

-- functions/schedules.sql

-- Schedules: the store reads no cron; it decides that each tick happens once.

CREATE OR REPLACE FUNCTION tenure.show_schedule(p_row tenure.schedule) RETURNS json
LANGUAGE sql STABLE
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT json_build_array(p_row.name, p_row.spec::text, tenure.to_us(p_row.last_tick), tenure.to_us(p_row.paused_at), p_row.paused_by,
        tenure.to_us(p_row.created_at), tenure.to_us(p_row.updated_at))
$$;

-- list_schedules: {"names": […]} or {} → the rows by name.
CREATE OR REPLACE FUNCTION tenure.list_schedules(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(tenure.show_schedule(s) ORDER BY s.name COLLATE "C"), '[]')
    FROM tenure.schedule AS s
    WHERE p_request -> 'names' IS NULL OR s.name IN (SELECT n.name FROM json_array_elements_text(p_request -> 'names') AS n(name))
$$;

-- set_schedules: {"specs": {name: spec}, "actor"} → their rows. A known one keeps its last tick and its pause.
CREATE OR REPLACE FUNCTION tenure.set_schedules(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_name text;
    v_spec json;
BEGIN
    FOR v_name, v_spec IN SELECT e.key, e.value FROM json_each(p_request -> 'specs') AS e ORDER BY e.key COLLATE "C" LOOP
        INSERT INTO tenure.schedule AS s (name, spec, last_tick, created_at, updated_at)
        VALUES (v_name, v_spec, v_now, v_now, v_now)
        ON CONFLICT (name) DO UPDATE SET spec = excluded.spec, updated_at = v_now WHERE s.spec::text <> excluded.spec::text;
        IF FOUND THEN
            PERFORM tenure.write_audit(v_now, p_request ->> 'actor', 'set_schedule', v_name, NULL, v_spec);
        END IF;
    END LOOP;
    RETURN tenure.list_schedules(json_build_object('names', (SELECT coalesce(json_agg(k.name), '[]')
        FROM json_object_keys(p_request -> 'specs') AS k(name))));
END
$$;

-- tick_schedule: {"name", "after", "tick", "jobs": an enqueue request} → whether this caller was the one.
-- The row decides, under its lock. A key that is taken is no error here: that job is left out.
CREATE OR REPLACE FUNCTION tenure.tick_schedule(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    UPDATE tenure.schedule AS s
    SET last_tick = tenure.from_us((p_request ->> 'tick')::bigint),
        updated_at = tenure.now()
    WHERE s.name = p_request ->> 'name'
        AND s.last_tick = tenure.from_us((p_request ->> 'after')::bigint)
        AND s.paused_at IS NULL;
    IF NOT FOUND THEN
        RETURN to_json(false);
    END IF;
    BEGIN
        IF p_request -> 'jobs' IS NOT NULL THEN
            PERFORM tenure.enqueue(p_request -> 'jobs');
        END IF;
    EXCEPTION WHEN SQLSTATE 'TN004' THEN
        NULL;
    END;
    RETURN to_json(true);
END
$$;

-- pause_schedules: {"names", "paused", "actor", "reason"} → the names that changed. Resuming starts from now.
CREATE OR REPLACE FUNCTION tenure.pause_schedules(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_paused boolean := (p_request ->> 'paused')::boolean;
    v_name text;
    v_changed text[] := '{}';
BEGIN
    FOR v_name IN SELECT n.name FROM json_array_elements_text(p_request -> 'names') AS n(name) ORDER BY n.name COLLATE "C" LOOP
        UPDATE tenure.schedule AS s
        SET paused_at = CASE WHEN v_paused THEN v_now END,
            paused_by = CASE WHEN v_paused THEN p_request ->> 'actor' END,
            last_tick = CASE WHEN v_paused THEN s.last_tick ELSE v_now END,
            updated_at = v_now
        WHERE s.name = v_name AND (s.paused_at IS NULL) = v_paused;
        IF FOUND THEN
            v_changed := v_changed || v_name;
            PERFORM tenure.write_audit(v_now, p_request ->> 'actor', CASE WHEN v_paused THEN 'pause_schedule' ELSE 'resume_schedule' END,
                v_name, p_request ->> 'reason', NULL);
        END IF;
    END LOOP;
    RETURN array_to_json(v_changed);
END
$$;

-- remove_schedules: {"names", "actor"} → the names that were there. Jobs they made stay.
CREATE OR REPLACE FUNCTION tenure.remove_schedules(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_name text;
    v_gone text[] := '{}';
BEGIN
    FOR v_name IN SELECT n.name FROM json_array_elements_text(p_request -> 'names') AS n(name) ORDER BY n.name COLLATE "C" LOOP
        DELETE FROM tenure.schedule AS s WHERE s.name = v_name;
        IF FOUND THEN
            v_gone := v_gone || v_name;
            PERFORM tenure.write_audit(tenure.now(), p_request ->> 'actor', 'remove_schedule', v_name, NULL, NULL);
        END IF;
    END LOOP;
    RETURN array_to_json(v_gone);
END
$$;

-- functions/schema_version.sql

-- schema_version: the newest migration in this database. A function, because the roles may not read the ledger itself.
CREATE OR REPLACE FUNCTION tenure.schema_version() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT coalesce(max(m.number), 0) FROM tenure.migration AS m $$;

-- functions/set_gate.sql

-- set_gate: {"name", "is_open", "actor", "reason"} → the gate. A gate that opens wakes whoever waits for work.
CREATE OR REPLACE FUNCTION tenure.set_gate(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_name text := p_request ->> 'name';
    v_is_open boolean := (p_request ->> 'is_open')::boolean;
BEGIN
    IF v_name IS NULL OR v_name !~ '^(([A-Za-z0-9_-]+\.)?(master|worker|notify|heartbeat)|queue:.{1,200})$' THEN
        RAISE EXCEPTION 'There can be no gate %. Gates are master, worker, notify, heartbeat, PROFILE.GATE and queue:NAME.',
            coalesce(quote_literal(v_name), 'without a name') USING ERRCODE = 'TN007';
    END IF;
    PERFORM tenure.write_audit(
        v_now, p_request ->> 'actor', CASE WHEN v_is_open THEN 'open_gate' ELSE 'close_gate' END, v_name, p_request ->> 'reason', NULL
    );
    INSERT INTO tenure.gate AS g (name, is_open, actor, updated_at)
    VALUES (v_name, v_is_open, p_request ->> 'actor', v_now)
    ON CONFLICT (name) DO UPDATE
    SET is_open = excluded.is_open,
        actor = excluded.actor,
        updated_at = excluded.updated_at;
    IF v_is_open THEN
        PERFORM tenure.notify(q, NULL) FROM tenure.queue AS q;
    END IF;
    RETURN json_build_object(
        'name', v_name, 'is_open', v_is_open, 'updated_at', tenure.to_us(v_now), 'actor', p_request ->> 'actor'
    );
END
$$;

-- functions/set_queues.sql

-- set_queues: {"policies": {name: {column: value, …}}, "actor", "only_new"} → the queues as they stand now, in the order given.
--
-- Columns that a policy leaves out keep their value, or get the default in a new queue. Jobs already there keep the rank and
-- max_attempts they were given. A queue with live jobs stays with its profile.
CREATE OR REPLACE FUNCTION tenure.set_queues(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_only_new boolean := coalesce((p_request ->> 'only_new')::boolean, false);
    v_name text;
    v_policy json;
    v_is_new boolean;
BEGIN
    -- In the order of their names: two calls that set the same queues cannot wait for each other in a circle.
    FOR v_name, v_policy IN SELECT e.key, e.value FROM json_each(p_request -> 'policies') AS e ORDER BY e.key COLLATE "C" LOOP
        CONTINUE WHEN v_only_new AND EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.name = v_name);
        INSERT INTO tenure.queue (name, created_at, updated_at) VALUES (v_name, v_now, v_now) ON CONFLICT DO NOTHING;
        v_is_new := FOUND;
        IF v_is_new OR NOT v_only_new THEN
            PERFORM tenure.set_policy(v_name, v_policy, v_now);
            PERFORM tenure.write_audit(
                v_now, p_request ->> 'actor', CASE WHEN v_is_new THEN 'create_queue' ELSE 'set_queue' END, v_name, NULL, v_policy
            );
        END IF;
    END LOOP;
    RETURN (
        SELECT coalesce(json_agg(tenure.show_queue(q) ORDER BY e.nth), '[]')
        FROM json_object_keys(p_request -> 'policies') WITH ORDINALITY AS e(name, nth)
        JOIN tenure.queue AS q ON q.name = e.name
    );
END
$$;

-- set_policy: write one queue's policy over what stands there.
CREATE OR REPLACE FUNCTION tenure.set_policy(p_name text, p_policy json, p_now timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_old tenure.queue;
    v_new tenure.queue;
    v_unknown text;
BEGIN
    SELECT * INTO STRICT v_old FROM tenure.queue AS q WHERE q.name = p_name FOR UPDATE;
    SELECT given.name INTO v_unknown
    FROM json_object_keys(p_policy) AS given(name)
    WHERE given.name IN ('name', 'paused_at', 'paused_by', 'created_at', 'updated_at')
        OR given.name NOT IN (SELECT known.name FROM json_object_keys(row_to_json(v_old)) AS known(name))
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'Queue %: a policy has no setting %. Nothing was changed.', quote_literal(p_name), quote_literal(v_unknown)
            USING ERRCODE = 'TN007';
    END IF;
    v_new := json_populate_record(v_old, p_policy);
    IF v_new.profile IS DISTINCT FROM v_old.profile AND EXISTS (
        SELECT 1 FROM tenure.job AS j WHERE j.queue = p_name AND j.state IN ('queued', 'leased', 'running', 'waiting')
    ) THEN
        RAISE EXCEPTION 'Queue % belongs to profile % as long as it has live jobs, so it cannot go to profile %. Nothing was changed.',
            quote_literal(p_name), quote_literal(v_old.profile), quote_literal(v_new.profile)
            USING ERRCODE = 'TN008', HINT = 'Let its jobs end or cancel them first, or use another queue.';
    END IF;
    UPDATE tenure.queue AS q
    SET profile = v_new.profile,
        priority_order = v_new.priority_order,
        priority_default = v_new.priority_default,
        aging_seconds = v_new.aging_seconds,
        start_on_claim = v_new.start_on_claim,
        max_attempts = v_new.max_attempts,
        backoff_shape = v_new.backoff_shape,
        backoff_base_seconds = v_new.backoff_base_seconds,
        backoff_power = v_new.backoff_power,
        backoff_factor = v_new.backoff_factor,
        backoff_cap_seconds = v_new.backoff_cap_seconds,
        backoff_jitter = v_new.backoff_jitter,
        lease_seconds = v_new.lease_seconds,
        lease_max_seconds = v_new.lease_max_seconds,
        key_scope = v_new.key_scope,
        key_space = v_new.key_space,
        key_required = v_new.key_required,
        key_window_seconds = v_new.key_window_seconds,
        key_conflict = v_new.key_conflict,
        revive = v_new.revive,
        on_unknown_kind = v_new.on_unknown_kind,
        forbidden_keys = v_new.forbidden_keys,
        concurrency = v_new.concurrency,
        concurrency_per_key = v_new.concurrency_per_key,
        retain_seconds = v_new.retain_seconds,
        events = v_new.events,
        updated_at = p_now
    WHERE q.name = p_name;
END
$$;

-- functions/settle_outcomes.sql

-- settle_outcomes: the settling half of an exchange. Answers [[id, token, state, run_at_us], …] for whatever did not end as a plain
-- success; state null says that the lease was lost and nothing was changed. Null: everything was a plain success.
--
-- Takes {"ids": "{id,…}", "tokens": "{token,…}", "done": [{"i": id, "t": token, "r": result, "s": summary, "a": artifacts}],
-- "rest": [{"i", "t", "o": move, …}]}: plain completions, which go in one statement, and everything else, one by one. Completions that
-- leave nothing behind may come as two SQL arrays in text, which are far quicker to read than so many objects.
-- Invariant: only the grant that holds the lease may write. `token` rises in claim and nowhere else, and a lease that ran out counts
-- no more, so a late worker matches no row.
-- Rows are found and locked one by one, in order of id. `BETWEEN g.i AND g.i` says «equal» in words that only a lookup by key can serve:
-- for an equality the planner may turn the join around and read the whole table, if it believes that nothing is in it. A row that somebody
-- else (a heartbeat) writes while we wait for its lock is looked at again as it is then, so it counts if it still is ours.
CREATE OR REPLACE FUNCTION tenure.settle_outcomes(p_outcomes json, p_now timestamptz) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_ids uuid[];
    v_tokens bigint[];
    v_done json;
    v_rest json;
    v_cutoff timestamptz := tenure.expiry_cutoff(p_now);
    v_answers json[] := '{}';
    v_given integer;
    v_settled integer;
    v_odd uuid[];
    v_told uuid[];
    v_events boolean;
BEGIN
    SELECT o.ids, o.tokens, o.done, o.rest, EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.events)
    INTO v_ids, v_tokens, v_done, v_rest, v_events
    FROM json_to_record(p_outcomes) AS o(ids uuid[], tokens bigint[], done json, rest json);
    -- One plain completion, the common end of a worker with little to do, is not gathered and counted. Whatever else it turns out to be
    -- (lost, repeated, asked to stop) is left to the statements below.
    IF cardinality(v_ids) = 1 AND v_done IS NULL AND v_rest IS NULL AND NOT v_events THEN
        UPDATE tenure.job AS j
        SET state = 'succeeded',
            result = NULL,
            result_summary = NULL,
            lease_owner = NULL,
            lease_until = NULL,
            started_at = coalesce(j.started_at, j.claimed_at),
            finished_at = p_now,
            dedup_slot = CASE WHEN left(j.dedup_slot, 1) = 'a' THEN NULL ELSE j.dedup_slot END,
            updated_at = p_now
        WHERE j.id = v_ids[1] AND j.token = v_tokens[1] AND j.lease_until > v_cutoff AND j.cancel_requested_at IS NULL;
        IF FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    IF v_rest IS NOT NULL THEN
        PERFORM 1 FROM tenure.job AS j
        WHERE j.id IN (
            SELECT unnest(v_ids)
            UNION ALL SELECT g.i FROM json_to_recordset(coalesce(v_done, '[]')) AS g(i uuid)
            UNION ALL SELECT g.i FROM json_to_recordset(v_rest) AS g(i uuid)
        )
        ORDER BY j.id FOR UPDATE;
    END IF;
    IF v_done IS NOT NULL OR v_ids IS NOT NULL THEN
        WITH given AS MATERIALIZED (
            SELECT unnest(v_ids) AS i, unnest(v_tokens) AS t, NULL::json AS r, NULL AS s, NULL AS a
            UNION ALL
            SELECT g.i, g.t, g.r, g.s, g.a FROM json_to_recordset(coalesce(v_done, '[]')) AS g(i uuid, t bigint, r json, s text, a text)
            ORDER BY 1
        ), ended AS (
            UPDATE tenure.job AS j
            SET state = CASE WHEN j.cancel_requested_at IS NULL THEN 'succeeded' ELSE 'cancelled' END,
                result = CASE WHEN j.cancel_requested_at IS NULL THEN g.r END,
                result_summary = CASE WHEN j.cancel_requested_at IS NULL THEN g.s END,
                artifacts_path = coalesce(g.a, j.artifacts_path),
                lease_owner = NULL,
                lease_until = NULL,
                started_at = coalesce(j.started_at, j.claimed_at),
                finished_at = p_now,
                dedup_slot = CASE WHEN left(j.dedup_slot, 1) = 'a' THEN NULL ELSE j.dedup_slot END,
                updated_at = p_now
            FROM given AS g
            WHERE j.id BETWEEN g.i AND g.i AND j.token = g.t AND j.lease_until > v_cutoff
            RETURNING j.id, j.cancel_requested_at
        )
        SELECT (SELECT count(*) FROM given), count(*),
            array_agg(e.id) FILTER (WHERE e.cancel_requested_at IS NOT NULL), array_agg(e.id) FILTER (WHERE v_events AND e.cancel_requested_at IS NULL)
        INTO v_given, v_settled, v_odd, v_told
        FROM ended AS e;
        IF v_told IS NOT NULL THEN
            PERFORM tenure.tell('completed', v_told, p_now);
        END IF;
        IF v_odd IS NOT NULL THEN
            v_answers := v_answers || tenure.cancelled_instead(v_odd, p_now);
            PERFORM tenure.tell('cancelled', v_odd, p_now);
        END IF;
        IF v_settled < v_given THEN
            v_answers := v_answers || tenure.refused_completions(v_ids, v_tokens, v_done);
        END IF;
    END IF;
    IF v_rest IS NOT NULL THEN
        v_answers := v_answers || tenure.settle_rest(v_rest, p_now, v_cutoff);
    END IF;
    IF cardinality(v_answers) = 0 THEN
        RETURN NULL;
    END IF;
    RETURN array_to_json(v_answers);
END
$$;

-- cancelled_instead: completions of jobs that were asked to stop end as cancelled; their attempt is written down.
CREATE OR REPLACE FUNCTION tenure.cancelled_instead(p_ids uuid[], p_now timestamptz) RETURNS json[]
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO tenure.attempt (job_id, token, attempt, claimed_at, ended_at, outcome, failure_class, error)
    SELECT j.id, j.token, j.attempt, j.claimed_at, p_now, 'cancelled', 'cancelled', 'Completed after a cancel was requested.'
    FROM unnest(p_ids) AS c(id) JOIN tenure.job AS j ON j.id = c.id
    ON CONFLICT DO NOTHING;
    UPDATE tenure.job AS j SET failure_class = 'cancelled' WHERE j.id = ANY (p_ids);
    RETURN ARRAY(SELECT json_build_array(j.id, j.token, 'cancelled', NULL) FROM tenure.job AS j WHERE j.id = ANY (p_ids));
END
$$;

-- refused_completions: of these completions, those that did not count: lost. One that was taken in by an earlier try of the same
-- request (succeeded under that very token) is no refusal.
CREATE OR REPLACE FUNCTION tenure.refused_completions(p_ids uuid[], p_tokens bigint[], p_done json) RETURNS json[]
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(array_agg(json_build_array(g.i, g.t, CASE WHEN j.state = 'cancelled' AND a.outcome = 'cancelled' THEN 'cancelled' END, NULL)), '{}')
    FROM (
        SELECT unnest(p_ids) AS i, unnest(p_tokens) AS t
        UNION ALL SELECT d.i, d.t FROM json_to_recordset(coalesce(p_done, '[]')) AS d(i uuid, t bigint)
    ) AS g
    LEFT JOIN tenure.job AS j ON j.id = g.i AND j.token = g.t
    LEFT JOIN tenure.attempt AS a ON a.job_id = g.i AND a.token = g.t
    WHERE j.state IS DISTINCT FROM 'succeeded'
$$;

-- functions/settle_rest.sql

-- settle_rest: outcomes that are more than a plain completion, one by one, in order of id. The caller holds the locks.
-- Each: {"i": id, "t": token, "o": complete|fail|reject|release|suspend|stop, "e": error, "c": class, "d": seconds, "w": waiting for,
--        "r", "s", "a": as for a completion, "jobs": an enqueue request, "events": [[kind, data]], "effects": [effect]}.
-- Answers [id, token, state, run_at_us] for each but plain successes.
CREATE OR REPLACE FUNCTION tenure.settle_rest(p_rest json, p_now timestamptz, p_cutoff timestamptz) RETURNS json[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_answers json[] := '{}';
    v_out record;
    v_job tenure.job;
    v_state text;
BEGIN
    FOR v_out IN
        SELECT g.*
        FROM json_to_recordset(p_rest) AS g(
            i uuid, t bigint, o text, e text, c text, d double precision, w text, r json, s text, a text, jobs json, events json, effects json)
        ORDER BY g.i
    LOOP
        SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = v_out.i AND j.token = v_out.t AND j.lease_until > p_cutoff FOR UPDATE;
        IF NOT FOUND THEN
            v_answers := v_answers || tenure.settled_before(v_out.i, v_out.t, v_out.o);
            CONTINUE;
        END IF;
        IF v_out.o = 'complete' AND v_job.cancel_requested_at IS NULL THEN
            PERFORM tenure.complete_with(v_job, v_out.r, v_out.s, v_out.a, v_out.jobs, v_out.events, v_out.effects, p_now);
            CONTINUE;
        END IF;
        v_state := tenure.finish(
            v_job, CASE v_out.o WHEN 'complete' THEN 'stop' ELSE v_out.o END, coalesce(v_out.c, 'error'), v_out.e, v_out.d, v_out.w, p_now);
        v_answers := v_answers || json_build_array(v_out.i, v_out.t, v_state,
            CASE WHEN v_state = 'queued' THEN (SELECT tenure.to_us(j.run_at) FROM tenure.job AS j WHERE j.id = v_out.i) END);
    END LOOP;
    RETURN v_answers;
END
$$;

-- complete_with: a success that carries follow-up jobs, events or effects. All of it is committed with the end, or none.
CREATE OR REPLACE FUNCTION tenure.complete_with(
    p_job tenure.job, p_result json, p_summary text, p_artifacts text, p_jobs json, p_events json, p_effects json, p_now timestamptz
) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_effect json;
BEGIN
    IF p_events IS NOT NULL THEN
        INSERT INTO tenure.event (at, kind, job_id, queue, data)
        SELECT p_now, e.value ->> 0, p_job.id, p_job.queue, e.value -> 1 FROM json_array_elements(p_events) AS e;
    END IF;
    IF p_effects IS NOT NULL THEN
        FOR v_effect IN SELECT f.value FROM json_array_elements(p_effects) AS f LOOP
            PERFORM tenure.record_effect(json_build_object('job_id', p_job.id, 'token', p_job.token, 'effect', v_effect));
        END LOOP;
    END IF;
    UPDATE tenure.job AS j
    SET state = 'succeeded',
        result = p_result,
        result_summary = p_summary,
        artifacts_path = coalesce(p_artifacts, j.artifacts_path),
        lease_owner = NULL,
        lease_until = NULL,
        started_at = coalesce(j.started_at, j.claimed_at),
        finished_at = p_now,
        dedup_slot = CASE WHEN left(j.dedup_slot, 1) = 'a' THEN NULL ELSE j.dedup_slot END,
        updated_at = p_now
    WHERE j.id = p_job.id;
    PERFORM tenure.tell('completed', ARRAY[p_job.id], p_now);
    IF p_jobs IS NOT NULL THEN
        PERFORM tenure.follow_up(p_jobs);
    END IF;
END
$$;

-- follow_up: enqueue what a completed job hands on. No gate is asked: a settle is never refused by one.
CREATE OR REPLACE FUNCTION tenure.follow_up(p_jobs json) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_group record;
    v_queue tenure.queue;
BEGIN
    FOR v_group IN SELECT g.queue, g.kind, g.jobs FROM json_to_recordset(p_jobs -> 'groups') AS g(queue text, kind text, jobs json) LOOP
        SELECT * INTO v_queue FROM tenure.queue AS q WHERE q.name = v_group.queue;
        IF NOT FOUND THEN
            PERFORM tenure.refuse_unknown_queue(v_group.queue);
        END IF;
        PERFORM tenure.put_group(v_queue, v_group.kind, json_array_length(v_group.jobs), v_group.jobs, NULL, false);
    END LOOP;
END
$$;

-- settled_before: an outcome found no lease. If this very grant was already ended by its worker, a repeated request is answered as the
-- first one was; otherwise the lease was lost.
CREATE OR REPLACE FUNCTION tenure.settled_before(p_id uuid, p_token bigint, p_move text) RETURNS json[]
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_outcome text;
    v_run_at timestamptz;
BEGIN
    IF p_move = 'complete' AND EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.id = p_id AND j.token = p_token AND j.state = 'succeeded') THEN
        RETURN '{}';
    END IF;
    SELECT a.outcome, a.run_at INTO v_outcome, v_run_at
    FROM tenure.attempt AS a
    WHERE a.job_id = p_id AND a.token = p_token;
    IF v_outcome IS NULL OR v_outcome = 'expired' OR p_move = 'complete' AND v_outcome <> 'cancelled' THEN
        RETURN ARRAY[json_build_array(p_id, p_token, NULL, NULL)];
    END IF;
    RETURN ARRAY[json_build_array(p_id, p_token, CASE v_outcome
            WHEN 'retried' THEN 'queued' WHEN 'released' THEN 'queued' WHEN 'suspended' THEN 'waiting' ELSE v_outcome END,
        tenure.to_us(v_run_at))];
END
$$;

-- functions/summary.sql

-- summary: how it goes. {"window_seconds", "queues", "limit"} → {"at", "ran", "stuck_count", "stuck", "backlog", "repeated"}.
-- Looks at jobs that ended within the window (by job_finished_idx) and at live ones (by their partial indexes), never at the rest.
CREATE OR REPLACE FUNCTION tenure.summary(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_since timestamptz := v_now - (p_request ->> 'window_seconds')::double precision * interval '1 second';
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_limit bigint := tenure.page_limit(p_request);
BEGIN
    RETURN json_build_object(
        'at', tenure.to_us(v_now),
        'ran', tenure.sum_ran(v_since, v_queues),
        'stuck_count', (
            SELECT count(*) FROM tenure.job AS j
            WHERE j.state IN ('leased', 'running') AND j.lease_until <= v_now AND (v_queues IS NULL OR j.queue = ANY (v_queues))),
        'stuck', (
            SELECT coalesce(json_agg(json_build_array(s.id, s.queue, s.kind, s.state, s.lease_owner, s.attempt, tenure.to_us(s.lease_until))
                ORDER BY s.lease_until), '[]')
            FROM (
                SELECT j.* FROM tenure.job AS j
                WHERE j.state IN ('leased', 'running') AND j.lease_until <= v_now AND (v_queues IS NULL OR j.queue = ANY (v_queues))
                ORDER BY j.lease_until LIMIT v_limit
            ) AS s),
        'backlog', tenure.sum_backlog(v_now, v_queues),
        'repeated', tenure.sum_repeated(v_since, v_queues, v_limit));
END
$$;

-- sum_ran: what ended within the window, by queue and kind, with how long it took.
CREATE OR REPLACE FUNCTION tenure.sum_ran(p_since timestamptz, p_queues text[]) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    WITH ended AS (
        SELECT j.queue, j.kind, j.state, j.finished_at,
            CASE WHEN j.state = 'succeeded' THEN extract(epoch FROM j.finished_at - j.claimed_at)::double precision END AS run_seconds,
            CASE WHEN j.state = 'succeeded' THEN greatest(0, extract(epoch FROM j.claimed_at - j.run_at))::double precision END AS wait_seconds
        FROM tenure.job AS j
        WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.finished_at > p_since
            AND (p_queues IS NULL OR j.queue = ANY (p_queues))
    ), by_kind AS (
        SELECT e.queue, e.kind,
            count(*) FILTER (WHERE e.state = 'succeeded') AS succeeded,
            count(*) FILTER (WHERE e.state = 'failed') AS failed,
            count(*) FILTER (WHERE e.state = 'dead') AS dead,
            count(*) FILTER (WHERE e.state = 'cancelled') AS cancelled,
            avg(e.run_seconds) AS run_average,
            percentile_disc(ARRAY[0.5, 0.95, 1]) WITHIN GROUP (ORDER BY e.run_seconds) AS runs,
            percentile_disc(0.5) WITHIN GROUP (ORDER BY e.wait_seconds) AS wait_p50,
            max(e.finished_at) AS last_at
        FROM ended AS e
        GROUP BY e.queue, e.kind
    )
    SELECT coalesce(json_agg(json_build_array(
        b.queue, b.kind, b.succeeded, b.failed, b.dead, b.cancelled, b.run_average, b.runs[1], b.runs[2], b.runs[3], b.wait_p50,
        tenure.to_us(b.last_at)) ORDER BY b.queue COLLATE "C", b.kind COLLATE "C"), '[]')
    FROM by_kind AS b
$$;

-- sum_backlog: what waits, by queue.
CREATE OR REPLACE FUNCTION tenure.sum_backlog(p_now timestamptz, p_queues text[]) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    WITH live AS (
        SELECT j.queue, j.state, j.run_at, (j.state = 'queued' AND j.attempt > 0 AND j.failure_class IS NOT NULL) AS is_retry
        FROM tenure.job AS j
        WHERE j.finished_at IS NULL AND (p_queues IS NULL OR j.queue = ANY (p_queues))
    ), by_queue AS (
        SELECT l.queue,
            count(*) FILTER (WHERE l.state = 'queued' AND l.run_at <= p_now) AS due,
            count(*) FILTER (WHERE l.state = 'queued' AND l.run_at > p_now) AS delayed,
            count(*) FILTER (WHERE l.is_retry) AS retrying,
            count(*) FILTER (WHERE l.state IN ('leased', 'running')) AS held,
            count(*) FILTER (WHERE l.state = 'waiting') AS waiting,
            min(l.run_at) FILTER (WHERE l.state = 'queued' AND l.run_at <= p_now) AS oldest_due_at
        FROM live AS l
        GROUP BY l.queue
    )
    SELECT coalesce(json_agg(json_build_array(
        b.queue, b.due, b.delayed, b.retrying, b.held, b.waiting, tenure.to_us(b.oldest_due_at)) ORDER BY b.queue COLLATE "C"), '[]')
    FROM by_queue AS b
$$;

-- sum_repeated: keys that several jobs carry, among those to do and those that ended within the window.
CREATE OR REPLACE FUNCTION tenure.sum_repeated(p_since timestamptz, p_queues text[], p_limit bigint) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    WITH keyed AS (
        SELECT j.id, j.queue, j.kind, j.idempotency_key, j.finished_at
        FROM tenure.job AS j
        WHERE j.idempotency_key IS NOT NULL AND (p_queues IS NULL OR j.queue = ANY (p_queues))
            AND (j.finished_at IS NULL OR (j.finished_at > p_since AND j.cleaned_at IS NULL))
    ), repeated AS (
        SELECT k.queue, k.kind, k.idempotency_key, count(*) AS jobs, count(*) FILTER (WHERE k.finished_at IS NULL) AS active,
            max(k.id::text) AS newest_id
        FROM keyed AS k
        GROUP BY k.queue, k.kind, k.idempotency_key
        HAVING count(*) > 1
        ORDER BY count(*) DESC, k.queue COLLATE "C", k.kind COLLATE "C", k.idempotency_key COLLATE "C"
        LIMIT p_limit
    )
    SELECT coalesce(json_agg(json_build_array(r.queue, r.kind, r.idempotency_key, r.jobs, r.active, r.newest_id)
        ORDER BY r.jobs DESC, r.queue COLLATE "C", r.kind COLLATE "C", r.idempotency_key COLLATE "C"), '[]')
    FROM repeated AS r
$$;

-- standing: where a job stands in its queue. {"job_id", "cap"} → {"at", "ahead", "held_in_queue", "held_with_key", "last_event"} or null.
CREATE OR REPLACE FUNCTION tenure.standing(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_job tenure.job;
BEGIN
    SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = tenure.as_uuid(p_request ->> 'job_id');
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN json_build_object(
        'at', tenure.to_us(tenure.now()),
        'ahead', CASE WHEN v_job.state = 'queued' THEN (
            SELECT count(*) FROM (
                SELECT 1 FROM tenure.job AS j
                WHERE j.queue = v_job.queue AND j.state = 'queued' AND j.is_due
                    AND (j.rank, j.run_at, j.id) < (v_job.rank, v_job.run_at, v_job.id)
                LIMIT (p_request ->> 'cap')::bigint
            ) AS before) ELSE 0 END,
        'held_in_queue', (SELECT count(*) FROM tenure.job AS j WHERE j.state IN ('leased', 'running') AND j.queue = v_job.queue),
        'held_with_key', (SELECT count(*) FROM tenure.job AS j
            WHERE j.state IN ('leased', 'running') AND j.queue = v_job.queue AND j.concurrency_key = v_job.concurrency_key),
        'last_event', (SELECT e.kind FROM tenure.event AS e WHERE e.job_id = v_job.id ORDER BY e.seq DESC LIMIT 1));
END
$$;

-- prunable: what a prune would remove if its limit were none.
CREATE OR REPLACE FUNCTION tenure.prunable(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    -- What it cleans may be old enough to go at once.
    WITH clean AS (
        SELECT j.id, j.finished_at
        FROM tenure.job AS j
        JOIN tenure.queue AS q ON q.name = j.queue
        WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL
            AND j.finished_at <= tenure.now()
                - coalesce((p_request ->> 'older_than_seconds')::double precision, q.retain_seconds) * interval '1 second'
            AND NOT EXISTS (SELECT 1 FROM tenure.dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
    ), gone AS (
        SELECT c.id
        FROM clean AS c
        WHERE c.finished_at <= tenure.now() - (p_request ->> 'delete_after_seconds')::double precision * interval '1 second'
        UNION ALL
        SELECT j.id
        FROM tenure.job AS j
        WHERE j.cleaned_at IS NOT NULL
            AND j.finished_at <= tenure.now() - (p_request ->> 'delete_after_seconds')::double precision * interval '1 second'
            AND NOT EXISTS (SELECT 1 FROM tenure.dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
    )
    SELECT json_build_object(
        'cleaned', (SELECT count(*) FROM clean),
        'deleted', (SELECT count(*) FROM gone),
        'events', (SELECT count(*) FROM tenure.event AS e WHERE e.job_id IN (SELECT g.id FROM gone AS g)),
        'workers', (SELECT count(*) FROM tenure.worker AS w
            WHERE w.last_seen_at <= tenure.now() - coalesce((p_request ->> 'worker_seconds')::double precision, 86400) * interval '1 second'),
        'metrics', (SELECT count(*) FROM tenure.metric AS m
            WHERE m.minute <= tenure.now() - coalesce((p_request ->> 'metric_seconds')::double precision, 2592000) * interval '1 second'),
        'more', false)
$$;

-- newest: the clock, the newest job and the newest event, for whoever inspects.
CREATE OR REPLACE FUNCTION tenure.newest() RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT json_build_object(
        'at', tenure.to_us(tenure.now()),
        'newest_created_at', (SELECT tenure.to_us(j.created_at) FROM tenure.job AS j ORDER BY j.id DESC LIMIT 1),
        'last_event', coalesce((SELECT max(e.seq) FROM tenure.event AS e), 0))
$$;

-- functions/tally.sql

-- tally_up: count what ended since the last time, up to a minute ago. Bounded by what ended; repeated at will; skipped where somebody
-- else is at it. Answers up to where everything is counted.
--
-- Invariant: every good end and every cleaned one up to counted_until is in the tally once. An end may be committed after others that
-- carry a later time, so a moment is counted only when every transaction is over that had begun to write a minute after it.
CREATE OR REPLACE FUNCTION tenure.tally_up(p_now timestamptz) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_mark tenure.tally_mark;
BEGIN
    SELECT * INTO v_mark FROM tenure.tally_mark AS m FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF v_mark.next_until IS NOT NULL AND pg_snapshot_xmin(pg_current_snapshot()) >= v_mark.next_xid THEN
        INSERT INTO tenure.tally AS t (profile, kind, state, is_cleaned, day, jobs, attempts, attempts_max, oldest_at, newest_at)
        SELECT
            e.profile, e.kind, e.state, e.is_cleaned, (e.finished_at AT TIME ZONE 'UTC')::date,
            count(*), sum(e.attempt), max(e.attempt), min(e.created_at), max(e.created_at)
        FROM (
            SELECT j.profile, j.kind, j.state, false AS is_cleaned, j.finished_at, j.attempt, j.created_at
            FROM tenure.job AS j
            WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.state = 'succeeded'
                AND j.finished_at > v_mark.counted_until AND j.finished_at <= v_mark.next_until
            UNION ALL
            SELECT j.profile, j.kind, j.state, true, j.finished_at, j.attempt, j.created_at
            FROM tenure.job AS j
            WHERE j.cleaned_at IS NOT NULL
                AND j.finished_at > v_mark.counted_until AND j.finished_at <= v_mark.next_until
        ) AS e
        GROUP BY 1, 2, 3, 4, 5
        ON CONFLICT (profile, kind, state, is_cleaned, day) DO UPDATE
        SET jobs = t.jobs + excluded.jobs,
            attempts = t.attempts + excluded.attempts,
            attempts_max = greatest(t.attempts_max, excluded.attempts_max),
            oldest_at = least(t.oldest_at, excluded.oldest_at),
            newest_at = greatest(t.newest_at, excluded.newest_at);
        v_mark.counted_until := v_mark.next_until;
        v_mark.next_until := NULL;
        UPDATE tenure.tally_mark AS m SET counted_until = v_mark.counted_until, next_until = NULL, next_xid = NULL;
    END IF;
    IF v_mark.next_until IS NULL AND p_now - interval '1 minute' > v_mark.counted_until THEN
        UPDATE tenure.tally_mark AS m
        SET next_until = p_now - interval '1 minute',
            next_xid = pg_snapshot_xmax(pg_current_snapshot());
    END IF;
    RETURN v_mark.counted_until;
END
$$;

-- tally_cleaned: these jobs have just lost their payloads, or with p_gone are about to be deleted; what the tally has of them moves along.
-- The mark is held until the commit, so that no tally_up sees them half moved.
CREATE OR REPLACE FUNCTION tenure.tally_cleaned(p_ids uuid[], p_gone boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_until timestamptz;
    v_moved record;
BEGIN
    SELECT m.counted_until INTO v_until FROM tenure.tally_mark AS m FOR SHARE;
    IF v_until = '-infinity' THEN
        RETURN;
    END IF;
    FOR v_moved IN
        SELECT
            j.profile, j.kind, j.state, (j.finished_at AT TIME ZONE 'UTC')::date AS day,
            count(*) AS jobs, sum(j.attempt) AS attempts, max(j.attempt) AS attempts_max,
            min(j.created_at) AS oldest_at, max(j.created_at) AS newest_at
        FROM tenure.job AS j
        WHERE j.id = ANY (p_ids) AND j.finished_at <= v_until
        GROUP BY 1, 2, 3, 4
        ORDER BY 1, 2, 3, 4
    LOOP
        UPDATE tenure.tally AS t
        SET jobs = t.jobs - v_moved.jobs,
            attempts = t.attempts - v_moved.attempts
        WHERE t.profile = v_moved.profile AND t.kind = v_moved.kind AND t.state = v_moved.state
            AND t.is_cleaned = p_gone AND t.day = v_moved.day;
        IF NOT p_gone THEN
            INSERT INTO tenure.tally AS t (profile, kind, state, is_cleaned, day, jobs, attempts, attempts_max, oldest_at, newest_at)
            VALUES (
                v_moved.profile, v_moved.kind, v_moved.state, true, v_moved.day,
                v_moved.jobs, v_moved.attempts, v_moved.attempts_max, v_moved.oldest_at, v_moved.newest_at
            )
            ON CONFLICT (profile, kind, state, is_cleaned, day) DO UPDATE
            SET jobs = t.jobs + excluded.jobs,
                attempts = t.attempts + excluded.attempts,
                attempts_max = greatest(t.attempts_max, excluded.attempts_max),
                oldest_at = least(t.oldest_at, excluded.oldest_at),
                newest_at = greatest(t.newest_at, excluded.newest_at);
        END IF;
    END LOOP;
    DELETE FROM tenure.tally AS t WHERE t.jobs <= 0;
END
$$;

-- functions/triage_dead_letters.sql

-- triage_dead_letters: {"ids", "triage", "actor", "note"} → the ids that were changed. Without a note the old one stays.
CREATE OR REPLACE FUNCTION tenure.triage_dead_letters(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_triage text := p_request ->> 'triage';
    v_letter record;
    v_changed uuid[] := '{}';
BEGIN
    FOR v_letter IN
        SELECT d.id, d.job_id, d.triage
        FROM tenure.dead_letter AS d
        WHERE d.id = ANY (ARRAY(SELECT tenure.as_uuid(e.value) FROM json_array_elements_text(p_request -> 'ids') AS e))
        ORDER BY d.id
        FOR UPDATE
    LOOP
        PERFORM tenure.write_audit(
            v_now, p_request ->> 'actor', 'triage', v_letter.id::text, p_request ->> 'note',
            json_build_object('job_id', v_letter.job_id, 'from', v_letter.triage, 'to', v_triage)
        );
        UPDATE tenure.dead_letter AS d
        SET triage = v_triage,
            triage_note = coalesce(p_request ->> 'note', d.triage_note),
            triaged_at = v_now,
            triaged_by = p_request ->> 'actor'
        WHERE d.id = v_letter.id;
        v_changed := v_changed || v_letter.id;
    END LOOP;
    RETURN array_to_json(v_changed);
END
$$;

-- functions/write_audit.sql

-- write_audit: one row of what somebody with power did. A nameless act is refused.
CREATE OR REPLACE FUNCTION tenure.write_audit(
    p_at timestamptz, p_actor text, p_act text, p_subject text, p_reason text, p_detail json
) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    IF coalesce(btrim(p_actor), '') = '' THEN
        RAISE EXCEPTION 'The actor must say who does this; it is empty, so % was refused and nothing was changed.', p_act
            USING ERRCODE = 'TN007';
    END IF;
    INSERT INTO tenure.audit (at, actor, act, subject, reason, detail)
    VALUES (p_at, p_actor, p_act, p_subject, p_reason, coalesce(p_detail, '{}'));
END
$$;

-- roles.sql

-- Who may do what. Runs at the end of every migration, and does no harm when repeated.
--
-- tenure_owner owns the schema and everything in it, and cannot log in. Five more roles, siblings that inherit nothing from each
-- other, may call functions and nothing else: no table, no sequence, no CREATE. Give a login one of them:
--     GRANT tenure_worker TO my_login;
--
-- Roles belong to the whole cluster. Where the migrating user may not create them, everything works without: the objects stay that
-- user's own, and a warning says so. Run this file again as a superuser to catch up.

DO $roles$
DECLARE
    v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY[
        'tenure_owner', 'tenure_producer', 'tenure_worker', 'tenure_reader', 'tenure_operator', 'tenure_admin'
    ] LOOP
        CONTINUE WHEN EXISTS (SELECT 1 FROM pg_catalog.pg_roles AS r WHERE r.rolname = v_role);
        BEGIN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', v_role);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN
                NULL;  -- Another database of this cluster is being migrated at the same time.
            WHEN insufficient_privilege THEN
                RAISE WARNING 'Role % was not created, because % may not create roles.', v_role, current_user
                    USING HINT = 'Run sql/roles.sql as a superuser, or go on with the privileges of one login.';
        END;
    END LOOP;
END
$roles$;

DO $owner$
DECLARE
    v_object record;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles AS r WHERE r.rolname = 'tenure_owner') THEN
        RETURN;
    END IF;
    -- To hand something over, one must be able to act as the new owner.
    IF NOT (SELECT r.rolsuper FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user) THEN
        EXECUTE pg_catalog.format('GRANT tenure_owner TO %I', current_user);
    END IF;
    ALTER SCHEMA tenure OWNER TO tenure_owner;
    FOR v_object IN
        SELECT c.oid::pg_catalog.regclass AS name
        FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = 'tenure'::pg_catalog.regnamespace
            AND c.relkind IN ('r', 'p', 'v', 'm')
            AND c.relowner <> 'tenure_owner'::pg_catalog.regrole
    LOOP
        EXECUTE pg_catalog.format('ALTER TABLE %s OWNER TO tenure_owner', v_object.name);
    END LOOP;
    FOR v_object IN
        SELECT p.oid::pg_catalog.regprocedure AS name
        FROM pg_catalog.pg_proc AS p
        WHERE p.pronamespace = 'tenure'::pg_catalog.regnamespace AND p.proowner <> 'tenure_owner'::pg_catalog.regrole
    LOOP
        EXECUTE pg_catalog.format('ALTER ROUTINE %s OWNER TO tenure_owner', v_object.name);
    END LOOP;
    FOR v_object IN
        SELECT t.oid::pg_catalog.regtype AS name
        FROM pg_catalog.pg_type AS t
        LEFT JOIN pg_catalog.pg_class AS c ON c.oid = t.typrelid
        WHERE t.typnamespace = 'tenure'::pg_catalog.regnamespace AND (t.typtype = 'd' OR c.relkind = 'c')
            AND t.typowner <> 'tenure_owner'::pg_catalog.regrole
    LOOP
        EXECUTE pg_catalog.format('ALTER TYPE %s OWNER TO tenure_owner', v_object.name);
    END LOOP;
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE WARNING 'The schema tenure stays with %, because it may not be handed to tenure_owner: %', current_user, SQLERRM
            USING HINT = 'GRANT tenure_owner TO the migrating user, or run sql/roles.sql as a superuser.';
END
$owner$;

DO $grants$
DECLARE
    v_row record;
    v_role text;
BEGIN
    REVOKE ALL ON SCHEMA tenure FROM PUBLIC;
    REVOKE ALL ON ALL TABLES IN SCHEMA tenure FROM PUBLIC;
    REVOKE ALL ON ALL SEQUENCES IN SCHEMA tenure FROM PUBLIC;
    REVOKE ALL ON ALL ROUTINES IN SCHEMA tenure FROM PUBLIC;
    FOREACH v_role IN ARRAY ARRAY['tenure_producer', 'tenure_worker', 'tenure_reader', 'tenure_operator', 'tenure_admin'] LOOP
        CONTINUE WHEN NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles AS r WHERE r.rolname = v_role);
        EXECUTE pg_catalog.format('REVOKE ALL ON ALL TABLES IN SCHEMA tenure FROM %I', v_role);
        EXECUTE pg_catalog.format('REVOKE ALL ON ALL ROUTINES IN SCHEMA tenure FROM %I', v_role);
        EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA tenure TO %I', v_role);
        -- A function that is not in this table is a step inside another one, and nobody's to call.
        FOR v_row IN
            SELECT p.oid::pg_catalog.regprocedure AS name
            FROM (
                VALUES
                    -- function            may be called by
                    ('now',                 'producer worker reader operator admin'),
                    ('now_us',              'producer worker reader operator admin'),
                    ('to_us',               'producer worker reader operator admin'),
                    ('from_us',             'producer worker reader operator admin'),
                    ('schema_version',      'producer worker reader operator admin'),
                    ('serially',            'producer worker reader operator admin'),
                    ('parsed',              'producer worker reader operator admin'),
                    ('first_moment',        'producer worker reader operator admin'),
                    ('enqueue',             'producer worker operator admin'),
                    ('enqueue_group',       'producer worker operator admin'),
                    ('enqueue_one',         'producer worker operator admin'),
                    ('enqueue_plain',       'producer worker operator admin'),
                    ('get_jobs',            'producer worker reader operator admin'),
                    ('exchange',            'worker admin'),
                    ('claim',               'worker admin'),
                    ('claim_few',           'worker admin'),
                    ('stand_by',            'worker admin'),
                    ('take_over',           'worker admin'),
                    ('settle',              'worker admin'),
                    ('start',               'worker admin'),
                    ('heartbeat',           'worker admin'),
                    ('append_events',       'worker admin'),
                    ('record_effect',       'worker admin'),
                    ('acquire_lease',       'worker admin'),
                    ('release_lease',       'worker admin'),
                    ('remove_workers',      'worker admin'),
                    ('reap',                'worker operator admin'),
                    ('wake',                'worker operator admin'),
                    ('list_profiles',       'producer worker reader operator admin'),
                    ('list_queues',         'worker reader operator admin'),
                    ('list_effects',        'worker reader operator admin'),
                    ('list_attempts',       'worker reader operator admin'),
                    ('list_gates',          'worker reader operator admin'),
                    ('list_schedules',      'worker reader operator admin'),
                    ('set_schedules',       'worker admin'),
                    ('tick_schedule',       'worker admin'),
                    ('pause_schedules',     'operator admin'),
                    ('remove_schedules',    'operator admin'),
                    ('roll_up',             'worker admin'),
                    ('list_metrics',        'reader operator admin'),
                    ('summary',             'reader operator admin'),
                    ('standing',            'reader operator admin'),
                    ('newest',              'reader operator admin'),
                    ('prunable',            'reader operator admin'),
                    ('list_jobs',           'worker reader operator admin'),
                    ('count_jobs',          'reader operator admin'),
                    ('list_dead_letters',   'reader operator admin'),
                    ('group_dead_letters',  'reader operator admin'),
                    ('list_workers',        'reader operator admin'),
                    ('list_events',         'reader operator admin'),
                    ('list_audit',          'reader operator admin'),
                    ('cancel',              'operator admin'),
                    ('revive',              'operator admin'),
                    ('resolve_effect',      'operator admin'),
                    ('clone',               'operator admin'),
                    ('triage_dead_letters', 'operator admin'),
                    ('pause_queues',        'operator admin'),
                    ('prune',               'operator admin'),
                    ('set_queues',          'admin'),
                    ('set_gate',            'admin')
            ) AS matrix(function, roles)
            JOIN pg_catalog.pg_proc AS p ON p.proname = matrix.function AND p.pronamespace = 'tenure'::pg_catalog.regnamespace
            WHERE pg_catalog.substr(v_role, 8) = ANY (pg_catalog.string_to_array(matrix.roles, ' '))
        LOOP
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %I', v_row.name, v_role);
        END LOOP;
    END LOOP;
END
$grants$;

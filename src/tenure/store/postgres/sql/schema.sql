-- Tenure on PostgreSQL: the tables. The functions that guard them are in functions/, by subject.
--
-- Law: only functions write. Every function reads the time once, through tenure.now().
--
-- Locks are taken in this order, so that no two functions can wait for each other in a circle:
--   1. queue rows (share), 2. workflows by rising id, 3. groups of children by rising id, 4. job rows by rising id, 5. everything that
--   belongs to a job (attempt, dead_letter, effect, event, step, signal, task), 6. worker rows, 7. named leases, 8. the tally's mark,
--   9. the metrics' mark.
-- A fold of workflow events locks the workflows and then their tasks' jobs, these in the order of the graph; whatever else locks several
-- jobs and may wait for them locks the workflows of those jobs first (tenure.lock_runs). An exchange locks no workflow: of the jobs that it
-- settles a fold locks one page at a time, by rising id.
-- Groups are locked by the sweep of flow events, which locks waiting jobs after them, and by a page of children, which holds its running
-- parent and new rows, none of which the sweep locks. Neither claims. An exchange locks no group but those it has just made:
-- it inserts flow events, which are never updated. Events and signals are taken with SKIP LOCKED and never waited for.
-- A claim never waits for a job row: it skips what is locked. Between settling and picking it takes advisory locks, in this order: the
-- sweep of expired leases (tried, never waited for), limited queues by name, the worker that takes a job to run alone.

-- A schema of this name that another role has made is not taken over: functions and triggers that are in it would run with our rights.
DO $schema$
DECLARE
    v_owner text;
BEGIN
    SELECT r.rolname INTO v_owner
    FROM pg_catalog.pg_namespace AS n
    JOIN pg_catalog.pg_roles AS r ON r.oid = n.nspowner
    JOIN pg_catalog.pg_database AS d ON d.datname = pg_catalog.current_database()
    WHERE n.nspname = 'tenure' AND NOT r.rolsuper AND r.oid <> d.datdba
        AND r.rolname NOT IN (session_user, current_user, 'tenure_owner', 'pg_database_owner');
    IF FOUND THEN
        RAISE EXCEPTION 'Schema tenure is there already and belongs to role %, which could have put code of its own into it. Nothing was created.',
            v_owner USING ERRCODE = 'TN010', HINT = 'Look at what is in it. Then drop it, or give it to the role that migrates: ALTER SCHEMA tenure OWNER TO …';
    END IF;
    CREATE SCHEMA IF NOT EXISTS tenure;
END
$schema$;

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

-- has_key: whether a JSON value carries one of the keys, at any depth, in any case. For the payload guard.
-- Over json, not jsonb: of two equal keys jsonb forgets the first, with all that is below it.
-- In plpgsql, so that the planner cannot inline it: the CHECK that calls it is prepared anew by every insert and update.
CREATE OR REPLACE FUNCTION tenure.has_key(p_value json, p_keys text[]) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN EXISTS (
        WITH RECURSIVE part(key, value) AS (
            SELECT NULL::text, p_value
            UNION ALL
            SELECT below.key, below.value
            FROM part AS p
            CROSS JOIN LATERAL (
                SELECT e.key, e.value
                FROM pg_catalog.json_each(CASE pg_catalog.json_typeof(p.value) WHEN 'object' THEN p.value END) AS e
                UNION ALL
                SELECT NULL, a.value
                FROM pg_catalog.json_array_elements(CASE pg_catalog.json_typeof(p.value) WHEN 'array' THEN p.value END) AS a
            ) AS below
        )
        SELECT 1 FROM part AS p WHERE pg_catalog.lower(p.key) IN (SELECT pg_catalog.lower(k.key) FROM pg_catalog.unnest(p_keys) AS k(key))
    );
END
$$;

-- is_free_of: whether a payload carries none of the keys. Strict: where nothing is forbidden the CHECK that calls it passes unasked.
CREATE OR REPLACE FUNCTION tenure.is_free_of(p_payload json, p_keys text[]) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$ BEGIN RETURN NOT tenure.has_key(p_payload, p_keys); END $$;

-- readable: a JSON value as every client can parse it. SQL takes what JSON parsers do not: numbers of any length, any depth, halves of
-- surrogate pairs, NUL. Such a value is shown as {"$unreadable": why}, so that one row never hides the others.
-- Not PARALLEL SAFE: up to PostgreSQL 16 a block with EXCEPTION fails in a parallel query.
CREATE OR REPLACE FUNCTION tenure.readable(p_value json) RETURNS json
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_why text;
BEGIN
    IF p_value IS NULL THEN
        RETURN NULL;
    ELSIF octet_length(p_value::text) > 16777216 THEN
        v_why := format('It has %s bytes.', octet_length(p_value::text));
    ELSIF octet_length(p_value::text) > 300 AND p_value::text ~ '[0-9]{150}[0-9]{150}' THEN
        v_why := 'It has a run of more than 300 digits.';
    ELSIF jsonb_path_exists(p_value::jsonb, 'strict $.**{100 to last}') THEN
        v_why := 'It is nested deeper than 100 levels.';
    ELSE
        RETURN p_value;
    END IF;
    RETURN json_build_object('$unreadable', v_why);
EXCEPTION WHEN OTHERS THEN
    RETURN json_build_object('$unreadable', SQLERRM);
END
$$;

-- Rules of job are domains: PostgreSQL reads those once a session, but a table's CHECK anew in every statement that writes a row, which
-- costs a single job more than writing it does.
CREATE DOMAIN tenure.job_state AS text
    CONSTRAINT job_state_known CHECK (VALUE = ANY ('{queued,leased,running,waiting,succeeded,failed,dead,cancelled}'));
CREATE DOMAIN tenure.job_kind AS text
    CONSTRAINT job_kind_not_blank CHECK (btrim(VALUE) <> '' AND length(VALUE) <= 200 AND VALUE !~ '[\x01-\x1f]');
CREATE DOMAIN tenure.job_actor AS text
    CONSTRAINT job_actor_not_blank CHECK (btrim(VALUE) <> '');
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

-- terms: new jobs of one queue and kind, and what they get from their queue. rank = step × priority + start; dedup_slot = slot and key.
CREATE TYPE tenure.terms AS (
    queue text, kind text, profile text, max_attempts integer, priority integer, forbidden_keys text[], slot text, step bigint, start bigint, jobs json
);

CREATE TABLE tenure.migration (
    number integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    compatible_from integer NOT NULL
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
    agent_events text NOT NULL DEFAULT 'none',
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
    CONSTRAINT queue_agent_events_known CHECK (agent_events IN ('none', 'completed', 'ends')),
    -- Jobs of this queue embed agent events: one for each of them would never end.
    CONSTRAINT queue_embedding_keeps_none CHECK (name <> 'embedding' OR agent_events = 'none'),
    CONSTRAINT queue_numbers_sound CHECK (
        max_attempts >= 1 AND lease_seconds > 0 AND lease_max_seconds >= lease_seconds
        AND backoff_base_seconds >= 0 AND backoff_cap_seconds >= 0 AND backoff_jitter >= 0 AND key_window_seconds > 0
        AND coalesce(concurrency, 1) >= 1 AND coalesce(concurrency_per_key, 1) >= 1
        AND coalesce(retain_seconds, 0) >= 0 AND coalesce(aging_seconds, 1) > 0
    )
);

-- Empty unless a queue keeps lifecycle or agent events: one look at it tells every move that there is nothing to write.
CREATE INDEX queue_events_idx ON tenure.queue (name) WHERE events OR agent_events <> 'none';

-- login_queue: logins that work for these queues alone. Such a login has none of the five roles, but the functions of a worker's work.
CREATE TABLE tenure.login_queue (
    login text NOT NULL,
    queue text NOT NULL,
    PRIMARY KEY (login, queue)
);

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
    -- place_at: run_at as it was before the job was suspended; it gets that back when it is woken.
    place_at timestamptz,
    -- wake_token: the grant under which the job was woken while a worker held it; its suspend then goes straight back to queued.
    wake_token bigint,
    -- step_token: the newest grant that recorded a new step; 0 if none has, but the job has marks, works a memo out, or others wait for its
    -- end. Null for every other job, which then pays for none of this.
    step_token bigint,
    priority integer NOT NULL,
    attempt tenure.attempts NOT NULL DEFAULT 0,
    max_attempts tenure.max_attempts NOT NULL,
    crashes tenure.attempts NOT NULL DEFAULT 0,
    -- suspicion: how many workers vanished while they held this job; see model/state.py.
    suspicion smallint NOT NULL DEFAULT 0,
    -- is_beside: its worker held other jobs too when the first of its leases ran out. Cleared by a grant and by a heartbeat.
    is_beside boolean NOT NULL DEFAULT false,
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
    -- lease_login: the login that the newest grant was made for. It stays when the grant ends, so that only that login is told how.
    lease_login text,
    -- enqueued_by: the login that it belongs to. Of the producers that login alone reads it.
    enqueued_by text,
    idempotency_key text,
    dedup_slot text,
    affinity_key text,
    concurrency_key text,
    -- limiter: the keys of its limiters, sorted and joined by commas; null for a job that no limiter holds back.
    limiter text,
    waiting_for text,
    source_ref text,
    target_ref text,
    payload_ref text,
    actor tenure.job_actor,
    created_by_user_id uuid,
    requested_by_user_id uuid,
    tenant text,
    workflow_id uuid,
    parent_id uuid,
    -- group_id: the group whose child it is. Unlike parent_id, which also names the original of a clone, it says who waits for it.
    group_id uuid,
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

-- Claim order, on claimable rows only: neither history nor jobs due later cost it anything. Jobs to run alone
-- (a suspicion of ALONE_FROM or more in model/state.py) are a list of their own, and so are those of each limiter: a closed key has its
-- jobs walked by no claim.
CREATE INDEX job_claim_idx ON tenure.job (queue, (suspicion >= 2), coalesce(limiter, ''), rank, run_at, id) WHERE state = 'queued' AND is_due;
-- Which worker holds a job that must run alone.
CREATE INDEX job_alone_idx ON tenure.job (lease_owner) WHERE suspicion >= 2 AND state IN ('leased', 'running');
-- Jobs that come due later, and suspended ones with a time to wake.
CREATE INDEX job_due_idx ON tenure.job (run_at) WHERE NOT is_due AND state IN ('queued', 'waiting');
-- Held jobs, by when their lease runs out.
CREATE INDEX job_lease_idx ON tenure.job (lease_until) WHERE state IN ('leased', 'running');
-- Jobs that crashed by their own doing, by when they were last written: a crash looks here whether its kind is to be closed.
CREATE INDEX job_crashed_idx ON tenure.job (kind, updated_at) WHERE crashes >= 2;
-- One job per slot: this index decides, not a look beforehand.
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
    login text,
    claimed_at timestamptz,
    ended_at timestamptz NOT NULL,
    outcome text NOT NULL,
    failure_class text NOT NULL,
    error text,
    fingerprint text,
    run_at timestamptz,
    PRIMARY KEY (job_id, token),
    CONSTRAINT attempt_outcome_known CHECK (
        outcome IN ('retried', 'dead', 'failed', 'released', 'expired', 'cancelled')
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
    owner text,
    CONSTRAINT dead_letter_once_per_death UNIQUE (job_id, token),
    CONSTRAINT dead_letter_state_known CHECK (state IN ('dead', 'failed')),
    CONSTRAINT dead_letter_error_not_blank CHECK (btrim(final_error) <> ''),
    CONSTRAINT dead_letter_mover_not_blank CHECK (btrim(moved_by) <> ''),
    CONSTRAINT dead_letter_triage_known CHECK (
        triage IN ('pending', 'acknowledged', 'manual_replay', 'escalated', 'closed')
    ),
    CONSTRAINT dead_letter_payload_guarded CHECK (
        tenure.is_free_of(payload, forbidden_keys)
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
    -- login: who registered it. No other login may change the row.
    login text,
    started_at timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL,
    CONSTRAINT worker_id_not_blank CHECK (btrim(id) <> ''),
    CONSTRAINT worker_executor_kind_known CHECK (
        executor_kind IN ('DOT', 'Agent', 'Hermes', 'Codex', 'PG_worker', 'external_worker', 'future_Kestra_adapter')
    ),
    CONSTRAINT worker_status_known CHECK (status IN ('ok', 'warn', 'error'))
) WITH (fillfactor = 50);
CREATE INDEX worker_seen_idx ON tenure.worker (last_seen_at);

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
-- `xid` is the transaction that wrote the row: by it a follower knows what was committed since it looked, in whatever order numbers were taken.
CREATE TABLE tenure.event (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    kind text NOT NULL,
    job_id uuid,
    queue text,
    data json NOT NULL DEFAULT '{}',
    xid xid8 NOT NULL DEFAULT pg_current_xact_id()
);
CREATE INDEX event_xid_idx ON tenure.event (xid, seq);
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

-- audit: what operators did. Append-only.
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

-- tally: how many jobs ended well, and how many were cleaned, by day; so that no page has to count history. Maintenance brings it up
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
-- next_until is counted as soon as every transaction below next_xid has ended: no transaction can then commit an end before that moment.
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
    -- phase: loading (its graph is being written), forward, held (escalated: nothing is released), draining, retrying, stopped.
    phase text NOT NULL DEFAULT 'forward',
    -- total, and how many tasks ended how. See store/workflows.py.
    total integer NOT NULL DEFAULT 0,
    -- missing: how many tasks of its graph have still to be sent.
    missing integer NOT NULL DEFAULT 0,
    succeeded integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    tolerated integer NOT NULL DEFAULT 0,
    skipped integer NOT NULL DEFAULT 0,
    cancelled integer NOT NULL DEFAULT 0,
    policy json NOT NULL DEFAULT '{}',
    -- is_judged: failures count towards the threshold; not any more once a breach was answered by going on.
    is_judged boolean NOT NULL DEFAULT true,
    -- round: which escalation it is in; rises with every answer.
    round integer NOT NULL DEFAULT 1,
    key text,
    dedup_slot text UNIQUE,
    digest text,
    due_at timestamptz,
    -- started_by: the login that it belongs to.
    started_by text,
    actor text,
    tenant text,
    step text,
    data json NOT NULL DEFAULT '{}',
    error text,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    finished_at timestamptz,
    CONSTRAINT workflow_state_known CHECK (state IN ('running', 'waiting', 'completed', 'failed', 'escalated', 'cancelled')),
    CONSTRAINT workflow_phase_known CHECK (phase IN ('loading', 'forward', 'held', 'draining', 'retrying', 'stopped'))
) WITH (fillfactor = 50);
CREATE INDEX workflow_due_idx ON tenure.workflow (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX workflow_state_idx ON tenure.workflow (profile, state, updated_at);

-- shown: every job with the stage it is in, for the views of profiles, which translate `stage` into their own words.
-- `of_profile` is what to filter by; `touched_at` is when a job ended, or when it was last changed. Only the owner may read it.
-- To a caller that may not list jobs, such as a producer, it has no rows: the right on a column that RETURNING needs would show all of them.
-- The condition names no column, so it is judged once, before any row is read. Triggers of ours act as the owner and pass it.
-- What a job carries is shown to those who read all jobs, to the login that enqueued it and to that of its newest grant: a worker sees
-- which jobs there are, and no more of others'. The sub-select is carried out once in a query. JSON is as readable() has it: views make jsonb
-- of it, and a value that cannot be made jsonb would fail every look at its row.
CREATE VIEW tenure.shown AS
SELECT
    CASE
        WHEN j.state <> 'queued' THEN j.state
        WHEN j.failure_class IS NOT NULL AND j.attempt > 0 THEN 'retry'
        WHEN j.is_due THEN 'due'
        ELSE 'later'
    END::text AS stage,
    j.cleaned_at IS NOT NULL AS is_cleaned,
    j.profile AS of_profile,
    coalesce(j.finished_at, j.updated_at) AS touched_at,
    j.id, j.token, j.rank, j.run_at, j.created_at, j.updated_at, j.lease_until, j.claimed_at, j.started_at,
    j.finished_at, j.cleaned_at, j.cancel_requested_at, j.place_at, j.wake_token, j.step_token, j.priority,
    j.attempt, j.max_attempts, j.crashes, j.suspicion, j.is_beside, j.is_due, j.state, j.queue, j.kind, j.profile,
    CASE WHEN o.is_seen THEN tenure.readable(j.payload) END AS payload,
    CASE WHEN o.is_seen THEN j.payload_hash END AS payload_hash,
    j.lease_owner, j.lease_login, j.enqueued_by, j.idempotency_key, j.dedup_slot, j.affinity_key, j.concurrency_key,
    j.limiter, j.waiting_for, j.source_ref, j.target_ref, j.payload_ref, j.actor, j.created_by_user_id, j.requested_by_user_id,
    j.tenant, j.workflow_id, j.parent_id, j.group_id, j.run_id, j.trace, j.backoff, j.forbidden_keys,
    CASE WHEN o.is_seen THEN tenure.readable(j.progress) END AS progress,
    CASE WHEN o.is_seen THEN tenure.readable(j.result) END AS result,
    CASE WHEN o.is_seen THEN j.result_summary END AS result_summary,
    j.artifacts_path,
    CASE WHEN o.is_seen THEN j.last_error END AS last_error,
    j.failure_class
FROM tenure.job AS j
CROSS JOIN LATERAL (
    SELECT coalesce(w.login IN (j.enqueued_by, j.lease_login), false)
        OR (SELECT has_function_privilege(w.login, 'tenure.count_jobs(json)', 'EXECUTE')) AS is_seen
    -- As tenure.login() has it, which readers may not call.
    FROM (SELECT CASE current_setting('role') WHEN 'none' THEN session_user::text ELSE current_setting('role') END AS login) AS w
) AS o
WHERE has_function_privilege(current_user, 'tenure.list_jobs(json)', 'EXECUTE');

INSERT INTO tenure.tally_mark DEFAULT VALUES;
INSERT INTO tenure.queue (name, created_at, updated_at) VALUES ('default', tenure.now(), tenure.now());

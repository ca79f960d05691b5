-- Tenure on SQLite: the tables, column for column those of PostgreSQL.
--
-- Moments are whole microseconds since 1970 UTC, booleans 0 and 1, ids and JSON text. A moment that never comes is
-- the last one of the year 9999 (253402300799999999), where PostgreSQL says 'infinity'.
-- SQLite has one writer at a time, so there is no order of locks to keep. `waiter` is missing: a process that listens has a
-- socket beside the file, not a row in it.

CREATE TABLE tenure_migration (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    checksum TEXT NOT NULL,
    applied_at INTEGER NOT NULL,
    compatible_from INTEGER NOT NULL
) STRICT;

CREATE TABLE tenure_queue (
    name TEXT NOT NULL PRIMARY KEY,
    profile TEXT NOT NULL DEFAULT 'default',
    priority_order TEXT NOT NULL DEFAULT 'high',
    priority_default INTEGER NOT NULL DEFAULT 0,
    aging_seconds REAL,
    start_on_claim INTEGER NOT NULL DEFAULT 1,
    max_attempts INTEGER NOT NULL DEFAULT 3,
    backoff_shape TEXT NOT NULL DEFAULT 'exponential',
    backoff_base_seconds REAL NOT NULL DEFAULT 5,
    backoff_power REAL NOT NULL DEFAULT 2,
    backoff_factor REAL NOT NULL DEFAULT 2,
    backoff_cap_seconds REAL NOT NULL DEFAULT 3600,
    backoff_jitter REAL NOT NULL DEFAULT 0.1,
    lease_seconds REAL NOT NULL DEFAULT 60,
    lease_max_seconds REAL NOT NULL DEFAULT 86400,
    key_scope TEXT NOT NULL DEFAULT 'active',
    key_space TEXT NOT NULL DEFAULT 'kind',
    key_required INTEGER NOT NULL DEFAULT 0,
    key_window_seconds REAL NOT NULL DEFAULT 86400,
    key_conflict TEXT NOT NULL DEFAULT 'error',
    revive TEXT NOT NULL DEFAULT 'revive',
    on_unknown_kind TEXT NOT NULL DEFAULT 'leave',
    forbidden_keys TEXT,
    concurrency INTEGER,
    concurrency_per_key INTEGER,
    retain_seconds REAL DEFAULT 604800,
    events INTEGER NOT NULL DEFAULT 0,
    agent_events TEXT NOT NULL DEFAULT 'none',
    paused_at INTEGER,
    paused_by TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    CONSTRAINT queue_name_not_blank CHECK (trim(name) <> '' AND length(name) <= 200),
    CONSTRAINT queue_priority_order_known CHECK (priority_order IN ('high', 'low')),
    CONSTRAINT queue_backoff_shape_known CHECK (backoff_shape IN ('none', 'constant', 'linear', 'power', 'exponential')),
    CONSTRAINT queue_key_scope_known CHECK (key_scope IN ('none', 'active', 'window', 'forever')),
    CONSTRAINT queue_key_space_known CHECK (key_space IN ('kind', 'global')),
    CONSTRAINT queue_key_conflict_known CHECK (key_conflict IN ('error', 'tolerate')),
    CONSTRAINT queue_revive_known CHECK (revive IN ('revive', 'clone')),
    CONSTRAINT queue_on_unknown_kind_known CHECK (on_unknown_kind IN ('leave', 'reject', 'release')),
    CONSTRAINT queue_agent_events_known CHECK (agent_events IN ('none', 'completed', 'ends')),
    CONSTRAINT queue_embedding_keeps_none CHECK (name <> 'embedding' OR agent_events = 'none'),
    CONSTRAINT queue_numbers_sound CHECK (
        max_attempts >= 1 AND lease_seconds > 0 AND lease_max_seconds >= lease_seconds
        AND backoff_base_seconds >= 0 AND backoff_cap_seconds >= 0 AND backoff_jitter >= 0 AND key_window_seconds > 0
        AND coalesce(concurrency, 1) >= 1 AND coalesce(concurrency_per_key, 1) >= 1
        AND coalesce(retain_seconds, 0) >= 0 AND coalesce(aging_seconds, 1) > 0
    ),
    CONSTRAINT queue_numbers_32_bits CHECK (
        max_attempts <= 2147483647 AND coalesce(concurrency, 1) <= 2147483647 AND coalesce(concurrency_per_key, 1) <= 2147483647
        AND priority_default BETWEEN -2147483648 AND 2147483647
    )
) STRICT;
-- Empty unless a queue keeps lifecycle or agent events: one look at it tells every move that there is nothing to write.
CREATE INDEX queue_events_idx ON tenure_queue (events, agent_events) WHERE events = 1 OR agent_events <> 'none';

-- A gate without a row is open.
CREATE TABLE tenure_gate (
    name TEXT NOT NULL PRIMARY KEY,
    is_open INTEGER NOT NULL,
    actor TEXT NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;

-- job: every job, live or ended. Three writes in a good life: insert, grant, end.
CREATE TABLE tenure_job (
    id TEXT NOT NULL PRIMARY KEY,
    token INTEGER NOT NULL DEFAULT 0,
    rank INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    lease_until INTEGER,
    claimed_at INTEGER,
    started_at INTEGER,
    finished_at INTEGER,
    cleaned_at INTEGER,
    cancel_requested_at INTEGER,
    -- place_at: run_at as it was before the job was suspended; it gets that back when it is woken.
    place_at INTEGER,
    -- wake_token: the grant under which the job was woken while a worker held it; its suspend then goes straight back to queued.
    wake_token INTEGER,
    -- step_token: the newest grant that recorded a new step; 0 if none has, but the job has marks, works a memo out, or others wait for its
    -- end. Null for every other job, which then pays for none of this.
    step_token INTEGER,
    priority INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    crashes INTEGER NOT NULL DEFAULT 0,
    -- suspicion: how many workers vanished with this job beside others, see model.state.
    suspicion INTEGER NOT NULL DEFAULT 0,
    -- is_beside: its worker held other jobs too when the first of its leases ran out. Cleared by a grant and by a heartbeat.
    is_beside INTEGER NOT NULL DEFAULT 0,
    -- is_due: run_at had passed when the row was last written. Jobs due later stay out of the claim's index.
    is_due INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'queued',
    queue TEXT NOT NULL REFERENCES tenure_queue (name) ON UPDATE RESTRICT ON DELETE RESTRICT,
    kind TEXT NOT NULL,
    profile TEXT NOT NULL,
    payload TEXT,
    payload_hash TEXT,
    lease_owner TEXT,
    idempotency_key TEXT,
    dedup_slot TEXT,
    affinity_key TEXT,
    concurrency_key TEXT,
    -- limiter: the keys of its limiters, sorted and joined by commas; null for a job that no limiter holds back.
    limiter TEXT,
    waiting_for TEXT,
    source_ref TEXT,
    target_ref TEXT,
    payload_ref TEXT,
    actor TEXT,
    created_by_user_id TEXT,
    requested_by_user_id TEXT,
    tenant TEXT,
    workflow_id TEXT,
    parent_id TEXT,
    -- group_id: the group whose child it is. Unlike parent_id, which also names the original of a clone, it says who waits for it.
    group_id TEXT,
    run_id TEXT,
    trace TEXT,
    backoff TEXT,
    forbidden_keys TEXT,
    progress TEXT,
    result TEXT,
    result_summary TEXT,
    artifacts_path TEXT,
    last_error TEXT,
    failure_class TEXT,
    -- PostgreSQL's job_state_known, job_finished_iff_terminal and job_leased_iff_held in one. The states of a good life come first: every
    -- move pays for this check, and SQLite looks up a list of more than two words in a temporary index, row by row.
    CONSTRAINT job_state_sound CHECK (
        CASE state
            WHEN 'succeeded' THEN finished_at IS NOT NULL AND lease_owner IS NULL AND lease_until IS NULL
            WHEN 'running' THEN finished_at IS NULL AND lease_owner IS NOT NULL AND lease_until IS NOT NULL
            WHEN 'queued' THEN finished_at IS NULL AND lease_owner IS NULL AND lease_until IS NULL
            ELSE
                state IN ('queued', 'leased', 'running', 'waiting', 'succeeded', 'failed', 'dead', 'cancelled')
                AND (finished_at IS NOT NULL) = (state IN ('succeeded', 'failed', 'dead', 'cancelled'))
                AND (lease_owner IS NOT NULL) = (state IN ('leased', 'running'))
                AND (lease_until IS NOT NULL) = (state IN ('leased', 'running'))
        END
    ),
    CONSTRAINT job_payload_gone_only_when_cleaned CHECK (payload IS NOT NULL OR cleaned_at IS NOT NULL),
    CONSTRAINT job_payload_is_json CHECK (payload IS NULL OR json_valid(payload)),
    -- One each: SQLite looks again only at those whose column a statement writes.
    CONSTRAINT job_backoff_is_json CHECK (backoff IS NULL OR json_valid(backoff)),
    CONSTRAINT job_progress_is_json CHECK (progress IS NULL OR json_valid(progress)),
    CONSTRAINT job_result_is_json CHECK (result IS NULL OR json_valid(result)),
    CONSTRAINT job_kind_not_blank CHECK (
        trim(kind) <> '' AND length(kind) <= 200 AND kind NOT GLOB '*[' || char(1) || '-' || char(31) || ']*'
    ),
    CONSTRAINT job_actor_not_blank CHECK (actor IS NULL OR trim(actor) <> ''),
    CONSTRAINT job_attempts_sound CHECK (attempt >= 0 AND max_attempts >= 1 AND crashes >= 0 AND suspicion >= 0),
    CONSTRAINT job_priority_32_bits CHECK (priority BETWEEN -2147483648 AND 2147483647)
) STRICT;

-- Claim order, on claimable rows only: neither history nor jobs due later cost it anything. Jobs with a limiter are a list of their own
-- for each, so that a closed key has its jobs walked by no claim.
CREATE INDEX job_claim_idx ON tenure_job (queue, limiter, rank, run_at, id) WHERE state = 'queued' AND is_due = 1 AND suspicion < 2;
-- The same for jobs that must run alone: a claim looks here first, and mostly finds an empty index.
CREATE INDEX job_suspect_idx ON tenure_job (queue, rank, run_at, id) WHERE state = 'queued' AND is_due = 1 AND suspicion >= 2;
-- Jobs that come due later, and suspended ones with a time to wake.
CREATE INDEX job_due_idx ON tenure_job (run_at) WHERE is_due = 0 AND state IN ('queued', 'waiting');
-- Held jobs, by when their lease runs out.
CREATE INDEX job_lease_idx ON tenure_job (lease_until) WHERE state IN ('leased', 'running');
-- Jobs that crashed by their own doing, by when they were last written: a crash looks here whether its kind is to be closed.
CREATE INDEX job_crashed_idx ON tenure_job (kind, updated_at) WHERE crashes >= 2;
-- One job per slot: this index decides, not a look beforehand.
CREATE UNIQUE INDEX job_dedup_idx ON tenure_job (dedup_slot) WHERE dedup_slot IS NOT NULL;
-- For people and for retention: paid once, when a job ends.
CREATE INDEX job_finished_idx ON tenure_job (finished_at) WHERE finished_at IS NOT NULL AND cleaned_at IS NULL;
CREATE INDEX job_cleaned_idx ON tenure_job (finished_at) WHERE cleaned_at IS NOT NULL;
CREATE INDEX job_waiting_idx ON tenure_job (waiting_for) WHERE state = 'waiting';
CREATE INDEX job_workflow_idx ON tenure_job (workflow_id) WHERE workflow_id IS NOT NULL;
CREATE INDEX job_parent_idx ON tenure_job (parent_id) WHERE parent_id IS NOT NULL;

-- attempt: one row for each attempt that did not end well. A success leaves none.
CREATE TABLE tenure_attempt (
    job_id TEXT NOT NULL,
    token INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    worker TEXT,
    claimed_at INTEGER,
    ended_at INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    failure_class TEXT NOT NULL,
    error TEXT,
    fingerprint TEXT,
    run_at INTEGER,
    PRIMARY KEY (job_id, token),
    CONSTRAINT attempt_outcome_known CHECK (
        outcome IN ('retried', 'dead', 'failed', 'released', 'expired', 'cancelled')
    )
) STRICT;

-- dead_letter: one row per death. No foreign key: it outlives the job.
CREATE TABLE tenure_dead_letter (
    id TEXT NOT NULL PRIMARY KEY,
    job_id TEXT NOT NULL,
    token INTEGER NOT NULL,
    queue TEXT NOT NULL,
    profile TEXT NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    payload TEXT,
    forbidden_keys TEXT,
    source_ref TEXT,
    target_ref TEXT,
    payload_ref TEXT,
    idempotency_key TEXT,
    actor TEXT,
    run_id TEXT,
    workflow_id TEXT,
    attempts INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    failure_class TEXT NOT NULL,
    final_error TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    moved_at INTEGER NOT NULL,
    moved_by TEXT NOT NULL,
    triage TEXT NOT NULL DEFAULT 'pending',
    triage_note TEXT,
    triaged_at INTEGER,
    triaged_by TEXT,
    owner TEXT,
    CONSTRAINT dead_letter_once_per_death UNIQUE (job_id, token),
    CONSTRAINT dead_letter_state_known CHECK (state IN ('dead', 'failed')),
    CONSTRAINT dead_letter_error_not_blank CHECK (trim(final_error) <> ''),
    CONSTRAINT dead_letter_mover_not_blank CHECK (trim(moved_by) <> ''),
    CONSTRAINT dead_letter_triage_known CHECK (
        triage IN ('pending', 'acknowledged', 'manual_replay', 'escalated', 'closed')
    )
) STRICT;
CREATE INDEX dead_letter_triage_idx ON tenure_dead_letter (triage, moved_at);
CREATE INDEX dead_letter_fingerprint_idx ON tenure_dead_letter (fingerprint);

-- worker: one row per process start.
CREATE TABLE tenure_worker (
    id TEXT NOT NULL PRIMARY KEY,
    hostname TEXT NOT NULL,
    pid INTEGER NOT NULL,
    queues TEXT NOT NULL DEFAULT '[]',
    kinds TEXT NOT NULL DEFAULT '[]',
    concurrency INTEGER NOT NULL DEFAULT 1,
    version TEXT NOT NULL DEFAULT '',
    executor_kind TEXT NOT NULL DEFAULT 'external_worker',
    status TEXT NOT NULL DEFAULT 'ok',
    ticks INTEGER NOT NULL DEFAULT 0,
    current_job_id TEXT,
    info TEXT NOT NULL DEFAULT '{}',
    started_at INTEGER NOT NULL,
    last_seen_at INTEGER NOT NULL,
    CONSTRAINT worker_id_not_blank CHECK (trim(id) <> ''),
    CONSTRAINT worker_executor_kind_known CHECK (
        executor_kind IN ('DOT', 'Agent', 'Hermes', 'Codex', 'PG_worker', 'external_worker', 'future_Kestra_adapter')
    ),
    CONSTRAINT worker_status_known CHECK (status IN ('ok', 'warn', 'error')),
    CONSTRAINT worker_info_is_json CHECK (json_valid(info)),
    CONSTRAINT worker_numbers_32_bits CHECK (pid BETWEEN -2147483648 AND 2147483647 AND concurrency BETWEEN -2147483648 AND 2147483647)
) STRICT;
CREATE INDEX worker_seen_idx ON tenure_worker (last_seen_at);

-- lease: named leases, one row each; the term rises with every change of owner.
CREATE TABLE tenure_lease (
    name TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    term INTEGER NOT NULL,
    acquired_at INTEGER NOT NULL,
    until INTEGER NOT NULL
) STRICT;

-- schedule: what is declared to run by the clock, and which tick was dealt with last. The row decides that a tick happens once.
CREATE TABLE tenure_schedule (
    name TEXT NOT NULL PRIMARY KEY,
    spec TEXT NOT NULL,
    last_tick INTEGER NOT NULL,
    paused_at INTEGER,
    paused_by TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    CONSTRAINT schedule_name_not_blank CHECK (trim(name) <> '' AND length(name) <= 200),
    CONSTRAINT schedule_spec_is_json CHECK (json_valid(spec))
) STRICT;

-- event: append-only; lifecycle rows only for queues that ask for them.
CREATE TABLE tenure_event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    job_id TEXT,
    queue TEXT,
    data TEXT NOT NULL DEFAULT '{}',
    CONSTRAINT event_data_is_json CHECK (json_valid(data))
) STRICT;
CREATE INDEX event_job_idx ON tenure_event (job_id, seq) WHERE job_id IS NOT NULL;

-- effect: the ledger of side effects. Its place is (job, step, name); args and key are fixed by the first record.
CREATE TABLE tenure_effect (
    job_id TEXT NOT NULL,
    step TEXT NOT NULL DEFAULT '',
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    token INTEGER NOT NULL,
    key TEXT NOT NULL,
    args TEXT NOT NULL DEFAULT 'null',
    result TEXT,
    error TEXT,
    intended_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (job_id, step, name),
    CONSTRAINT effect_state_known CHECK (state IN ('intended', 'sent', 'confirmed', 'failed', 'unknown')),
    CONSTRAINT effect_values_are_json CHECK (json_valid(args) AND (result IS NULL OR json_valid(result)))
) STRICT;
CREATE INDEX effect_open_idx ON tenure_effect (state, job_id) WHERE state <> 'confirmed';

-- audit: what operators did. Append-only.
CREATE TABLE tenure_audit (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    act TEXT NOT NULL,
    subject TEXT NOT NULL,
    reason TEXT,
    detail TEXT NOT NULL DEFAULT '{}'
) STRICT;
CREATE INDEX audit_subject_idx ON tenure_audit (subject, seq);

-- profile: the vocabularies that are installed here. See the PostgreSQL schema for this table and the next ones.
CREATE TABLE tenure_profile (
    name TEXT NOT NULL PRIMARY KEY,
    title TEXT NOT NULL,
    policy TEXT NOT NULL,
    words TEXT NOT NULL,
    settings TEXT NOT NULL DEFAULT '{}',
    shows TEXT NOT NULL DEFAULT '[]',
    checksum TEXT NOT NULL,
    actor TEXT NOT NULL,
    installed_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    CONSTRAINT profile_name_plain CHECK (name GLOB '[a-z]*' AND name NOT GLOB '*[^a-z0-9_]*' AND length(name) <= 63 AND name <> 'tenure')
) STRICT;

-- tally: how many jobs ended well, and how many were cleaned, by day; so that no page has to count history. `day` counts from 1970.
CREATE TABLE tenure_tally (
    profile TEXT NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    is_cleaned INTEGER NOT NULL,
    day INTEGER NOT NULL,
    jobs INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    attempts_max INTEGER NOT NULL,
    oldest_at INTEGER NOT NULL,
    newest_at INTEGER NOT NULL,
    PRIMARY KEY (profile, kind, state, is_cleaned, day)
) STRICT;
CREATE TABLE tenure_tally_mark (
    is_only INTEGER NOT NULL PRIMARY KEY DEFAULT 1,
    counted_until INTEGER NOT NULL DEFAULT -1,
    CONSTRAINT tally_mark_is_one CHECK (is_only = 1)
) STRICT;

-- workflow: what several jobs of agents work towards. A job names it in workflow_id.
CREATE TABLE tenure_workflow (
    id TEXT NOT NULL PRIMARY KEY,
    profile TEXT NOT NULL DEFAULT 'automechanica',
    kind TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'running',
    -- phase: loading (its graph is being written), forward, held (escalated: nothing is released), draining, retrying, stopped.
    phase TEXT NOT NULL DEFAULT 'forward',
    -- total, and how many tasks ended how. See store/workflows.py.
    total INTEGER NOT NULL DEFAULT 0,
    -- missing: how many tasks of its graph have still to be sent.
    missing INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    tolerated INTEGER NOT NULL DEFAULT 0,
    skipped INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    policy TEXT NOT NULL DEFAULT '{}',
    -- is_judged: failures count towards the threshold; not any more once a breach was answered by going on.
    is_judged INTEGER NOT NULL DEFAULT 1,
    -- round: which escalation it is in; rises with every answer.
    round INTEGER NOT NULL DEFAULT 1,
    key TEXT,
    dedup_slot TEXT UNIQUE,
    digest TEXT,
    due_at INTEGER,
    actor TEXT,
    tenant TEXT,
    step TEXT,
    data TEXT NOT NULL DEFAULT '{}',
    error TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    finished_at INTEGER,
    CONSTRAINT workflow_state_known CHECK (state IN ('running', 'waiting', 'completed', 'failed', 'escalated', 'cancelled')),
    CONSTRAINT workflow_phase_known CHECK (phase IN ('loading', 'forward', 'held', 'draining', 'retrying', 'stopped'))
) STRICT;
CREATE INDEX workflow_due_idx ON tenure_workflow (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX workflow_state_idx ON tenure_workflow (profile, state, updated_at);

-- live_job: every job that is still to do, by the four indexes that hold them all: the ended ones cost nothing.
CREATE VIEW tenure_live_job AS
SELECT id, queue, kind, state, run_at, created_at, attempt, failure_class, idempotency_key
FROM tenure_job INDEXED BY job_claim_idx
WHERE state = 'queued' AND is_due = 1 AND suspicion < 2
UNION ALL
SELECT id, queue, kind, state, run_at, created_at, attempt, failure_class, idempotency_key
FROM tenure_job INDEXED BY job_suspect_idx
WHERE state = 'queued' AND is_due = 1 AND suspicion >= 2
UNION ALL
SELECT id, queue, kind, state, run_at, created_at, attempt, failure_class, idempotency_key
FROM tenure_job INDEXED BY job_due_idx
WHERE is_due = 0 AND state IN ('queued', 'waiting')
UNION ALL
SELECT id, queue, kind, state, run_at, created_at, attempt, failure_class, idempotency_key
FROM tenure_job INDEXED BY job_lease_idx
WHERE state IN ('leased', 'running');

-- shown: every job with the stage it is in, a constant in each branch. A view that translates `stage` into a profile's words stays as
-- quick as the table: a filter on a word is pushed into the branches, and all but the ones it names are passed over before they begin.
-- Each branch repeats the predicate of the index that serves it, word for word, as SQLite wants it. `finished_text` has an index too, and
-- `touched_text` has it for jobs that ended: for them it is when they ended, for others when they were last changed.
CREATE VIEW tenure_shown AS
SELECT 'due' AS stage, 0 AS is_cleaned, j.profile AS of_profile, NULL AS finished_text,
    datetime(j.updated_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.updated_at / 1000 % 1000), -3) AS touched_text, j.*
FROM tenure_job AS j
WHERE j.state = 'queued' AND j.is_due = 1 AND (j.failure_class IS NULL OR j.attempt = 0)
UNION ALL
SELECT 'later', 0, j.profile, NULL,
    datetime(j.updated_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.updated_at / 1000 % 1000), -3), j.*
FROM tenure_job AS j
WHERE j.state = 'queued' AND j.is_due = 0 AND (j.failure_class IS NULL OR j.attempt = 0)
UNION ALL
SELECT 'retry', 0, j.profile, NULL,
    datetime(j.updated_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.updated_at / 1000 % 1000), -3), j.*
FROM tenure_job AS j
WHERE j.state = 'queued' AND j.failure_class IS NOT NULL AND j.attempt > 0
UNION ALL
SELECT 'waiting', 0, j.profile, NULL,
    datetime(j.updated_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.updated_at / 1000 % 1000), -3), j.*
FROM tenure_job AS j
WHERE j.state = 'waiting'
UNION ALL
SELECT 'leased', 0, j.profile, NULL,
    datetime(j.updated_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.updated_at / 1000 % 1000), -3), j.*
FROM tenure_job AS j
WHERE j.state IN ('leased', 'running') AND j.state = 'leased'
UNION ALL
SELECT 'running', 0, j.profile, NULL,
    datetime(j.updated_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.updated_at / 1000 % 1000), -3), j.*
FROM tenure_job AS j
WHERE j.state IN ('leased', 'running') AND j.state = 'running'
UNION ALL
SELECT 'succeeded', 0, j.profile, datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3),
    datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3), j.*
FROM tenure_job AS j
WHERE j.state = 'succeeded' AND j.finished_at IS NOT NULL AND j.cleaned_at IS NULL
UNION ALL
SELECT 'failed', 0, j.profile, datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3),
    datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3), j.*
FROM tenure_job AS j
WHERE j.state = 'failed' AND j.finished_at IS NOT NULL AND j.cleaned_at IS NULL
UNION ALL
SELECT 'dead', 0, j.profile, datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3),
    datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3), j.*
FROM tenure_job AS j
WHERE j.state = 'dead' AND j.finished_at IS NOT NULL AND j.cleaned_at IS NULL
UNION ALL
SELECT 'cancelled', 0, j.profile, datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3),
    datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3), j.*
FROM tenure_job AS j
WHERE j.state = 'cancelled' AND j.finished_at IS NOT NULL AND j.cleaned_at IS NULL
UNION ALL
SELECT 'succeeded', 1, j.profile, datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3),
    datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3), j.*
FROM tenure_job AS j
WHERE j.state = 'succeeded' AND j.finished_at IS NOT NULL AND j.cleaned_at IS NOT NULL
UNION ALL
SELECT 'failed', 1, j.profile, datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3),
    datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3), j.*
FROM tenure_job AS j
WHERE j.state = 'failed' AND j.finished_at IS NOT NULL AND j.cleaned_at IS NOT NULL
UNION ALL
SELECT 'dead', 1, j.profile, datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3),
    datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3), j.*
FROM tenure_job AS j
WHERE j.state = 'dead' AND j.finished_at IS NOT NULL AND j.cleaned_at IS NOT NULL
UNION ALL
SELECT 'cancelled', 1, j.profile, datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3),
    datetime(j.finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (j.finished_at / 1000 % 1000), -3), j.*
FROM tenure_job AS j
WHERE j.state = 'cancelled' AND j.finished_at IS NOT NULL AND j.cleaned_at IS NOT NULL;

-- inserted: the job that the newest INSERT into a profile's view made, or found under its key. SQLite's RETURNING cannot show it, and
-- nothing that a trigger writes belongs to a connection; but a connection that has written holds the file until its transaction ends, so within
-- that transaction this row is its own.
CREATE TABLE tenure_inserted (
    profile TEXT NOT NULL PRIMARY KEY,
    id TEXT NOT NULL,
    is_duplicate INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- inbox: an INSERT here enqueues, by the same rules as tenure.store.sqlite.enqueue, in SQL alone: any client of any language may write
-- to it, and the views of profiles do. Unlike there the time is the machine's, payloads have no hash (a key that is taken is told from
-- a conflict by the payload itself), and an id may be left out.
CREATE VIEW tenure_inbox AS
SELECT NULL AS id, NULL AS profile, NULL AS queue, NULL AS kind, NULL AS payload, NULL AS priority, NULL AS run_at, NULL AS key,
    NULL AS max_attempts, NULL AS affinity_key, NULL AS source_ref, NULL AS target_ref, NULL AS payload_ref, NULL AS actor,
    NULL AS created_by_user_id, NULL AS requested_by_user_id, NULL AS workflow_id, NULL AS run_id, NULL AS artifacts_path
WHERE 0;

CREATE TRIGGER tenure_inbox_put INSTEAD OF INSERT ON tenure_inbox
BEGIN
    SELECT RAISE(ABORT, 'A job needs a kind that says which handler it is for; it is empty. Nothing was enqueued.')
    WHERE trim(coalesce(NEW.kind, '')) = '';
    SELECT RAISE(ABORT, 'The id is not a UUID in its canonical form. Nothing was enqueued.')
    WHERE lower(NEW.id) NOT GLOB '????????-????-????-????-????????????' OR replace(lower(NEW.id), '-', '') GLOB '*[^0-9a-f]*';
    SELECT RAISE(ABORT, 'created_by_user_id, requested_by_user_id, workflow_id and run_id are UUIDs in their canonical form. Nothing was enqueued.')
    FROM (
        SELECT lower(NEW.created_by_user_id) AS id
        UNION ALL SELECT lower(NEW.requested_by_user_id)
        UNION ALL SELECT lower(NEW.workflow_id)
        UNION ALL SELECT lower(NEW.run_id)
    ) AS g
    WHERE g.id NOT GLOB '????????-????-????-????-????????????' OR replace(g.id, '-', '') GLOB '*[^0-9a-f]*';
    SELECT RAISE(ABORT, 'There is no such queue in this profile. Nothing was enqueued. See tenure queues ls.')
    WHERE NOT EXISTS (SELECT 1 FROM tenure_queue AS q WHERE q.name = NEW.queue AND q.profile = NEW.profile);
    SELECT RAISE(ABORT, 'A gate is closed, so nothing was enqueued. See tenure gates ls.')
    FROM tenure_gate AS g
    WHERE g.is_open = 0 AND g.name IN ('master', NEW.profile || '.master', 'queue:' || NEW.queue);
    SELECT RAISE(ABORT, 'The payload is not JSON. Nothing was enqueued.') WHERE NEW.payload IS NOT NULL AND NOT json_valid(NEW.payload);
    SELECT RAISE(ABORT, 'The queue asks for an idempotency key and none was given. Nothing was enqueued.')
    FROM tenure_queue AS q
    WHERE q.name = NEW.queue AND q.key_required = 1 AND coalesce(NEW.key, '') = '';
    SELECT RAISE(ABORT, 'The payload carries a key that its queue forbids. Nothing was enqueued. Pass a reference instead.')
    FROM tenure_queue AS q
    CROSS JOIN json_tree(coalesce(NEW.payload, 'null')) AS t
    WHERE q.name = NEW.queue AND q.forbidden_keys IS NOT NULL AND typeof(t.key) = 'text'
        AND lower(t.key) IN (SELECT lower(f.value) FROM json_each(q.forbidden_keys) AS f);
    SELECT RAISE(ABORT, 'The id belongs to another job. Nothing was enqueued. Leave it out, or make a new one for each job.')
    FROM tenure_job AS j
    WHERE j.id = lower(NEW.id) AND (j.queue <> NEW.queue OR j.kind <> NEW.kind OR json(j.payload) <> json(coalesce(NEW.payload, 'null')));
    UPDATE tenure_job
    SET dedup_slot = NULL
    WHERE dedup_slot = (
        SELECT 'w|' || q.profile || char(31)
            || CASE q.key_space WHEN 'kind' THEN length(NEW.kind) || char(31) || NEW.kind ELSE '' END || char(31) || NEW.key
        FROM tenure_queue AS q
        WHERE q.name = NEW.queue AND q.key_scope = 'window'
            AND tenure_job.created_at <= CAST(strftime('%s', 'now') AS INTEGER) * 1000000 - CAST(1000000 * q.key_window_seconds AS INTEGER)
    );
    SELECT RAISE(ABORT, 'The key belongs to a job with another payload. Nothing was enqueued. Use another key, or the same payload.')
    FROM tenure_queue AS q
    JOIN tenure_job AS j ON j.dedup_slot = substr(q.key_scope, 1, 1) || '|' || q.profile || char(31)
        || CASE q.key_space WHEN 'kind' THEN length(NEW.kind) || char(31) || NEW.kind ELSE '' END || char(31) || NEW.key
    WHERE q.name = NEW.queue AND q.key_scope <> 'none' AND q.key_conflict = 'error'
        AND json(j.payload) <> json(coalesce(NEW.payload, 'null'));
    INSERT INTO tenure_job (
        id, kind, payload, queue, profile, priority, rank, max_attempts, run_at, is_due, created_at, updated_at,
        idempotency_key, dedup_slot, forbidden_keys, affinity_key, source_ref, target_ref, payload_ref, actor,
        created_by_user_id, requested_by_user_id, workflow_id, run_id, artifacts_path
    )
    SELECT
        coalesce(lower(NEW.id), printf('%08x-%04x-7%03x-%04x-%04x%08x', n.us / 1000 / 65536, n.us / 1000 % 65536, random() & 4095,
            (random() & 16383) | 32768, random() & 65535, random() & 4294967295)),
        NEW.kind, coalesce(NEW.payload, 'null'), q.name, q.profile,
        coalesce(NEW.priority, q.priority_default),
        CAST(CASE q.priority_order WHEN 'high' THEN -1 ELSE 1 END * coalesce(NEW.priority, q.priority_default)
            * coalesce(1000000 * q.aging_seconds, 1) AS INTEGER) + CASE WHEN q.aging_seconds IS NULL THEN 0 ELSE n.us END,
        coalesce(NEW.max_attempts, q.max_attempts), coalesce(NEW.run_at, n.us), coalesce(NEW.run_at, n.us) <= n.us, n.us, n.us,
        NEW.key,
        CASE WHEN q.key_scope <> 'none' THEN substr(q.key_scope, 1, 1) || '|' || q.profile || char(31)
            || CASE q.key_space WHEN 'kind' THEN length(NEW.kind) || char(31) || NEW.kind ELSE '' END || char(31) || NEW.key END,
        q.forbidden_keys, NEW.affinity_key, NEW.source_ref, NEW.target_ref, NEW.payload_ref, NEW.actor,
        lower(NEW.created_by_user_id), lower(NEW.requested_by_user_id), lower(NEW.workflow_id), lower(NEW.run_id), NEW.artifacts_path
    FROM tenure_queue AS q
    CROSS JOIN (
        SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000 AS us
    ) AS n
    WHERE q.name = NEW.queue
    ON CONFLICT DO NOTHING;
    INSERT INTO tenure_inserted (profile, id, is_duplicate)
    SELECT
        NEW.profile,
        coalesce(
            (SELECT j.id FROM tenure_job AS j WHERE changes() = 1 AND j.rowid = last_insert_rowid()),
            (
                SELECT j.id
                FROM tenure_queue AS q
                JOIN tenure_job AS j ON j.dedup_slot = substr(q.key_scope, 1, 1) || '|' || q.profile || char(31)
                    || CASE q.key_space WHEN 'kind' THEN length(NEW.kind) || char(31) || NEW.kind ELSE '' END || char(31) || NEW.key
                WHERE q.name = NEW.queue AND q.key_scope <> 'none'
            ),
            lower(NEW.id)
        ),
        changes() = 0
    WHERE true
    ON CONFLICT (profile) DO UPDATE
    SET id = excluded.id,
        is_duplicate = excluded.is_duplicate;
    INSERT INTO tenure_event (at, kind, job_id, queue)
    SELECT j.created_at, 'queued', j.id, j.queue
    FROM tenure_inserted AS i
    JOIN tenure_job AS j ON j.id = i.id
    JOIN tenure_queue AS q ON q.name = j.queue AND q.events = 1
    WHERE i.profile = NEW.profile AND i.is_duplicate = 0;
END;

INSERT INTO tenure_tally_mark DEFAULT VALUES;

INSERT INTO tenure_queue (name, created_at, updated_at)
VALUES ('default', CAST(strftime('%s', 'now') AS INTEGER) * 1000000, CAST(strftime('%s', 'now') AS INTEGER) * 1000000);

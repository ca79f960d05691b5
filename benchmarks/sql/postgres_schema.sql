-- The bare engine's table on PostgreSQL: as wide as Tenure's job, with the few indexes that live rows have to pay for.
-- history has the same columns and no index but its key; the `moved` variant ends jobs by moving them there.
CREATE SCHEMA bare;

CREATE TABLE bare.job (
    id uuid PRIMARY KEY,
    token bigint NOT NULL DEFAULT 0,
    rank bigint NOT NULL DEFAULT 0,
    run_at timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    lease_until timestamptz,
    claimed_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    cleaned_at timestamptz,
    cancel_requested_at timestamptz,
    priority integer NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL DEFAULT 3,
    crashes integer NOT NULL DEFAULT 0,
    is_due boolean NOT NULL DEFAULT true,
    state text NOT NULL DEFAULT 'queued',
    queue text NOT NULL,
    kind text NOT NULL,
    profile text NOT NULL DEFAULT 'default',
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
    failure_class text
);

CREATE INDEX job_claim_idx ON bare.job (queue, rank, run_at, id) WHERE state = 'queued';
CREATE INDEX job_lease_idx ON bare.job (lease_until) WHERE state = 'running';
CREATE UNIQUE INDEX job_dedup_idx ON bare.job (dedup_slot) WHERE dedup_slot IS NOT NULL;

CREATE TABLE bare.history (LIKE bare.job INCLUDING DEFAULTS);
ALTER TABLE bare.history ADD PRIMARY KEY (id);

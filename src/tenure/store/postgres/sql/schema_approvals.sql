-- Approvals: what durable jobs ask of people. store/approvals.py is the specification; the functions are in functions/approvals.sql.

-- approval: one question about exact arguments. args is canonical JSON text, and args_hash its SHA-256: a vote names it.
-- asked_of is a JSON array of names. used_for is the effect that used it: a later attempt finds its own use.
CREATE TABLE tenure.approval (
    id uuid PRIMARY KEY,
    job_id uuid NOT NULL,
    step_key text NOT NULL,
    token bigint NOT NULL,
    name text NOT NULL,
    args text,
    args_hash text NOT NULL,
    text text NOT NULL,
    need integer NOT NULL,
    asked_of json NOT NULL,
    asked_by text NOT NULL,
    state text NOT NULL DEFAULT 'pending',
    why text,
    on_expiry text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    decided_at timestamptz,
    used_at timestamptz,
    used_for text,
    CONSTRAINT approval_state_known CHECK (state IN ('pending', 'granted', 'denied', 'expired', 'void', 'used')),
    CONSTRAINT approval_on_expiry_known CHECK (on_expiry IN ('deny', 'grant')),
    CONSTRAINT approval_need_sound CHECK (need BETWEEN 1 AND 100),
    CONSTRAINT approval_args_not_large CHECK (octet_length(args) <= 65536),
    CONSTRAINT approval_args_are_json CHECK (args IS NULL OR args::json IS NOT NULL),
    CONSTRAINT approval_decided_iff_answered CHECK ((decided_at IS NULL) = (state = 'pending'))
) WITH (fillfactor = 80);
-- A step asks one question at a time; those before it are void.
CREATE UNIQUE INDEX approval_step_idx ON tenure.approval (job_id, step_key) WHERE state <> 'void';
CREATE INDEX approval_job_idx ON tenure.approval (job_id);
CREATE INDEX approval_pending_idx ON tenure.approval (id) WHERE state = 'pending';
CREATE INDEX approval_expires_idx ON tenure.approval (expires_at) WHERE state = 'pending' AND expires_at IS NOT NULL;

-- vote: one answer of one person. person is the voter's name in lower case, so that one person answers once.
CREATE TABLE tenure.vote (
    approval_id uuid NOT NULL,
    person text NOT NULL,
    voter text NOT NULL,
    choice text NOT NULL,
    note text,
    args_hash text NOT NULL,
    door text NOT NULL,
    vouched_by text,
    at timestamptz NOT NULL,
    PRIMARY KEY (approval_id, person),
    CONSTRAINT vote_choice_known CHECK (choice IN ('approve', 'deny'))
);

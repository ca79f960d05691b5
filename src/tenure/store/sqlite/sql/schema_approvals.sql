-- Approvals: what durable jobs ask of people. Column for column PostgreSQL's schema_approvals.sql; store/approvals.py is the specification.

-- approval: one question about exact arguments. args is canonical JSON text, and args_hash its SHA-256: a vote names it.
-- asked_of is a JSON array of names. used_for is the effect that used it: a later attempt finds its own use.
CREATE TABLE tenure_approval (
    id TEXT NOT NULL PRIMARY KEY,
    job_id TEXT NOT NULL,
    step_key TEXT NOT NULL,
    token INTEGER NOT NULL,
    name TEXT NOT NULL,
    args TEXT,
    args_hash TEXT NOT NULL,
    text TEXT NOT NULL,
    need INTEGER NOT NULL,
    asked_of TEXT NOT NULL,
    asked_by TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'pending',
    why TEXT,
    on_expiry TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    decided_at INTEGER,
    used_at INTEGER,
    used_for TEXT,
    CONSTRAINT approval_state_known CHECK (state IN ('pending', 'granted', 'denied', 'expired', 'void', 'used')),
    CONSTRAINT approval_on_expiry_known CHECK (on_expiry IN ('deny', 'grant')),
    CONSTRAINT approval_need_sound CHECK (need BETWEEN 1 AND 100),
    CONSTRAINT approval_args_not_large CHECK (length(CAST(args AS BLOB)) <= 65536),
    CONSTRAINT approval_args_are_json CHECK (args IS NULL OR json_valid(args)),
    CONSTRAINT approval_decided_iff_answered CHECK ((decided_at IS NULL) = (state = 'pending'))
) STRICT;
-- A step asks one question at a time; those before it are void.
CREATE UNIQUE INDEX approval_step_idx ON tenure_approval (job_id, step_key) WHERE state <> 'void';
CREATE INDEX approval_job_idx ON tenure_approval (job_id);
CREATE INDEX approval_pending_idx ON tenure_approval (id) WHERE state = 'pending';
CREATE INDEX approval_expires_idx ON tenure_approval (expires_at) WHERE state = 'pending' AND expires_at IS NOT NULL;

-- vote: one answer of one person. person is the voter's name in lower case, so that one person answers once.
CREATE TABLE tenure_vote (
    approval_id TEXT NOT NULL,
    person TEXT NOT NULL,
    voter TEXT NOT NULL,
    choice TEXT NOT NULL,
    note TEXT,
    args_hash TEXT NOT NULL,
    door TEXT NOT NULL,
    vouched_by TEXT,
    at INTEGER NOT NULL,
    PRIMARY KEY (approval_id, person),
    CONSTRAINT vote_choice_known CHECK (choice IN ('approve', 'deny'))
) STRICT;

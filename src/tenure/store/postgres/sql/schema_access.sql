
-- Access: who may come in by HTTP. Locks after those of schema.sql: api_token, web_session, audit_seal.

-- api_token: a named key of a program. `digest` is the SHA-256 of its secret, in hex; the secret is kept nowhere.
CREATE TABLE tenure.api_token (
    id text PRIMARY KEY,
    name text NOT NULL,
    scopes json NOT NULL,
    digest text NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    expires_at timestamptz NOT NULL,
    last_used_at timestamptz,
    revoked_at timestamptz,
    revoked_by text,
    CONSTRAINT api_token_name_not_blank CHECK (btrim(name) <> '' AND length(name) <= 200),
    CONSTRAINT api_token_digest_is_sha256 CHECK (length(digest) = 64),
    CONSTRAINT api_token_expires CHECK (expires_at > created_at AND expires_at <= created_at + interval '366 days')
);

-- web_session: a browser that is signed in, or a link that signs one in, once. Ended rows are kept for a week.
CREATE TABLE tenure.web_session (
    digest text PRIMARY KEY,
    kind text NOT NULL,
    name text NOT NULL,
    scopes json NOT NULL,
    token_id text,
    address text,
    created_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    ended_at timestamptz,
    CONSTRAINT web_session_kind_known CHECK (kind IN ('link', 'session')),
    CONSTRAINT web_session_digest_is_sha256 CHECK (length(digest) = 64)
);
CREATE INDEX web_session_token_idx ON tenure.web_session (token_id) WHERE ended_at IS NULL;

-- web_secret: random values that all server processes on this database share, to sign cursors and grants with.
CREATE TABLE tenure.web_secret (
    name text PRIMARY KEY,
    value text NOT NULL
);

-- web_request: which ids a request with an Idempotency-Key was given, and what it was answered. Kept for a day.
CREATE TABLE tenure.web_request (
    token_id text NOT NULL,
    key text NOT NULL,
    body text NOT NULL,
    ids json NOT NULL,
    answers json,
    at timestamptz NOT NULL,
    PRIMARY KEY (token_id, key)
);
CREATE INDEX web_request_at_idx ON tenure.web_request (at);

-- audit_seal: the chain over the audit, in the order of sealing. hash = SHA-256(previous ‖ text of the audit row).
CREATE TABLE tenure.audit_seal (
    number bigint PRIMARY KEY,
    seq bigint NOT NULL UNIQUE,
    previous text NOT NULL,
    hash text NOT NULL
);

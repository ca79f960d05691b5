
-- Access: who may come in by HTTP. Secrets are kept as SHA-256 only. See the PostgreSQL schema for these tables.

CREATE TABLE tenure_api_token (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    scopes TEXT NOT NULL,
    digest TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    last_used_at INTEGER,
    revoked_at INTEGER,
    revoked_by TEXT,
    CONSTRAINT api_token_name_not_blank CHECK (trim(name) <> '' AND length(name) <= 200),
    CONSTRAINT api_token_digest_is_sha256 CHECK (length(digest) = 64),
    CONSTRAINT api_token_expires CHECK (expires_at > created_at AND expires_at <= created_at + 31622400000000)
) STRICT;

CREATE TABLE tenure_web_session (
    digest TEXT NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    scopes TEXT NOT NULL,
    token_id TEXT,
    address TEXT,
    created_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    ended_at INTEGER,
    CONSTRAINT web_session_kind_known CHECK (kind IN ('link', 'session')),
    CONSTRAINT web_session_digest_is_sha256 CHECK (length(digest) = 64)
) STRICT;
CREATE INDEX web_session_token_idx ON tenure_web_session (token_id) WHERE ended_at IS NULL;

CREATE TABLE tenure_web_secret (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE tenure_web_request (
    token_id TEXT NOT NULL,
    key TEXT NOT NULL,
    body TEXT NOT NULL,
    ids TEXT NOT NULL,
    answers TEXT,
    at INTEGER NOT NULL,
    PRIMARY KEY (token_id, key)
) STRICT;
CREATE INDEX web_request_at_idx ON tenure_web_request (at);

CREATE TABLE tenure_audit_seal (
    number INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL UNIQUE,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL
) STRICT;

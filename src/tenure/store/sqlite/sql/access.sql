-- Access: tokens, sessions, and the chain over the audit.

-- name: token_create
-- A repeat finds its own row.
INSERT INTO tenure_api_token (id, name, scopes, digest, created_at, created_by, expires_at)
VALUES (:id, :name, :scopes, :digest, :now, :actor, :expires_at)
ON CONFLICT (id) DO NOTHING;

-- name: token_find
SELECT id, name, scopes, digest, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by,
    revoked_at IS NULL AND expires_at > :now AS is_valid
FROM tenure_api_token
WHERE id = :id;

-- name: token_list
SELECT id, name, scopes, digest, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by,
    revoked_at IS NULL AND expires_at > :now AS is_valid
FROM tenure_api_token
ORDER BY created_at DESC, id
LIMIT :limit;

-- name: token_revoke
UPDATE tenure_api_token
SET revoked_at = :now,
    revoked_by = :actor
WHERE id = :id
    AND revoked_at IS NULL
RETURNING name;

-- name: token_sessions_end
UPDATE tenure_web_session
SET ended_at = :now
WHERE token_id = :id
    AND ended_at IS NULL;

-- name: token_touch
UPDATE tenure_api_token
SET last_used_at = :now
WHERE id IN (SELECT value FROM json_each(:ids))
    AND (last_used_at IS NULL OR last_used_at < :now - 60000000);

-- name: session_create
INSERT INTO tenure_web_session (digest, kind, name, scopes, token_id, address, created_at, seen_at, expires_at)
VALUES (:digest, :kind, :name, :scopes, :token_id, :address, :now, :now, :expires_at)
ON CONFLICT (digest) DO NOTHING;

-- name: link_use
UPDATE tenure_web_session
SET ended_at = :now,
    seen_at = :now
WHERE digest = :link
    AND kind = 'link'
    AND ended_at IS NULL
    AND expires_at > :now
RETURNING name, scopes;

-- name: session_find
SELECT s.digest, s.kind, s.name, s.scopes, s.token_id, s.address, s.created_at, s.seen_at, s.expires_at, s.ended_at,
    s.ended_at IS NULL AND s.expires_at > :now AND (s.kind = 'link' OR s.seen_at > :now - :idle)
        AND (s.token_id IS NULL OR coalesce(t.revoked_at IS NULL AND t.expires_at > :now, 0)) AS is_valid
FROM tenure_web_session AS s
LEFT JOIN tenure_api_token AS t ON t.id = s.token_id
WHERE s.digest = :digest;

-- name: session_list
SELECT s.digest, s.kind, s.name, s.scopes, s.token_id, s.address, s.created_at, s.seen_at, s.expires_at, s.ended_at,
    s.ended_at IS NULL AND s.expires_at > :now AND (s.kind = 'link' OR s.seen_at > :now - :idle)
        AND (s.token_id IS NULL OR coalesce(t.revoked_at IS NULL AND t.expires_at > :now, 0)) AS is_valid
FROM tenure_web_session AS s
LEFT JOIN tenure_api_token AS t ON t.id = s.token_id
WHERE s.ended_at IS NULL
ORDER BY s.created_at DESC, s.digest
LIMIT :limit;

-- name: session_touch
UPDATE tenure_web_session
SET seen_at = :now
WHERE digest = :digest
    AND ended_at IS NULL
    AND seen_at < :now - 60000000;

-- name: session_end
UPDATE tenure_web_session
SET ended_at = :now
WHERE digest = :digest
    AND ended_at IS NULL
RETURNING name;

-- name: sessions_forget
-- What ended or expired a week ago goes, a few rows at a time.
DELETE FROM tenure_web_session
WHERE digest IN (
    SELECT s.digest
    FROM tenure_web_session AS s
    WHERE s.expires_at < :now - 604800000000
    LIMIT 100
);

-- name: secret_keep
INSERT INTO tenure_web_secret (name, value)
VALUES (:name, :candidate)
ON CONFLICT (name) DO NOTHING;

-- name: secret_read
SELECT value
FROM tenure_web_secret
WHERE name = :name;

-- name: request_keep
INSERT INTO tenure_web_request (token_id, key, body, ids, at)
VALUES (:token_id, :key, :body, :ids, :now)
ON CONFLICT (token_id, key) DO UPDATE
SET body = excluded.body,
    ids = excluded.ids,
    answers = NULL,
    at = excluded.at
WHERE tenure_web_request.at < :now - 86400000000;

-- name: request_answered
-- The first answer stays.
UPDATE tenure_web_request
SET answers = :answers
WHERE token_id = :token_id
    AND key = :key
    AND body = :body
    AND answers IS NULL;

-- name: request_read
SELECT body, ids, answers
FROM tenure_web_request
WHERE token_id = :token_id
    AND key = :key;

-- name: requests_forget
DELETE FROM tenure_web_request
WHERE rowid IN (SELECT r.rowid FROM tenure_web_request AS r WHERE r.at < :now - 86400000000 LIMIT 100);

-- name: seal_head
SELECT number, hash
FROM tenure_audit_seal
ORDER BY number DESC
LIMIT 1;

-- name: seal_missing
SELECT a.seq, a.at, a.actor, a.act, a.subject, a.reason, a.detail
FROM tenure_audit AS a
WHERE NOT EXISTS (SELECT 1 FROM tenure_audit_seal AS s WHERE s.seq = a.seq)
    AND a.seq > :floor
ORDER BY a.seq
LIMIT :limit;

-- name: seal_floor
-- One writer at a time: numbers commit in order, so nothing below the highest sealed one can come late.
SELECT coalesce(max(seq), 0)
FROM tenure_audit_seal;

-- name: seal_write
INSERT INTO tenure_audit_seal (number, seq, previous, hash)
VALUES (:number, :seq, :previous, :hash);

-- name: seal_list
SELECT s.number, s.seq, s.previous, s.hash, a.seq, a.at, a.actor, a.act, a.subject, a.reason, a.detail
FROM tenure_audit_seal AS s
LEFT JOIN tenure_audit AS a ON a.seq = s.seq
WHERE s.number > :after
ORDER BY s.number
LIMIT :limit;

-- name: seal_count_missing
SELECT count(*)
FROM (
    SELECT 1
    FROM tenure_audit AS a
    WHERE NOT EXISTS (SELECT 1 FROM tenure_audit_seal AS s WHERE s.seq = a.seq)
    LIMIT 10000
);

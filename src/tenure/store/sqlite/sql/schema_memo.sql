-- Memos: see tenure.store.memo.

-- memo: a value that was worked out once. open: the job job_id is at it. done: it is read until expires_at.
CREATE TABLE tenure_memo (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    tenant TEXT,
    state TEXT NOT NULL,
    job_id TEXT NOT NULL,
    value TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    CONSTRAINT memo_state_known CHECK (state IN ('open', 'done')),
    CONSTRAINT memo_done_has_value CHECK ((state = 'done') = (value IS NOT NULL) AND (state = 'done') = (expires_at IS NOT NULL)),
    CONSTRAINT memo_value_is_json CHECK (value IS NULL OR json_valid(value))
) STRICT;
CREATE INDEX memo_expires_idx ON tenure_memo (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX memo_name_idx ON tenure_memo (name, key, id);
-- What a job is to work out: its end hands it on.
CREATE INDEX memo_owner_idx ON tenure_memo (job_id) WHERE state = 'open';

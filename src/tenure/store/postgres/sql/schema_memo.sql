-- Memos: see tenure.store.memo.

-- memo: a value that was worked out once. open: the job job_id is at it. done: it is read until expires_at.
CREATE TABLE tenure.memo (
    id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    tenant text,
    state text NOT NULL,
    job_id uuid NOT NULL,
    value json,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    CONSTRAINT memo_state_known CHECK (state IN ('open', 'done')),
    CONSTRAINT memo_done_has_value CHECK ((state = 'done') = (value IS NOT NULL) AND (state = 'done') = (expires_at IS NOT NULL))
);
CREATE INDEX memo_expires_idx ON tenure.memo (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX memo_name_idx ON tenure.memo (name, key, id);
-- What a job is to work out: its end hands it on.
CREATE INDEX memo_owner_idx ON tenure.memo (job_id) WHERE state = 'open';

-- What agents did and what they remember, column for column as on PostgreSQL.

-- agent_event: what an agent did with a task, written in the transaction that ends it; and what programs note beside that. Append-only.
CREATE TABLE tenure_agent_event (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    agent TEXT NOT NULL,
    kind TEXT NOT NULL,
    job_id TEXT,
    workflow_id TEXT,
    tenant TEXT,
    key TEXT,
    data TEXT NOT NULL DEFAULT '{}',
    CONSTRAINT agent_event_named CHECK (trim(agent) <> '' AND trim(kind) <> ''),
    CONSTRAINT agent_event_once UNIQUE (key)
) STRICT;
CREATE INDEX agent_event_job_idx ON tenure_agent_event (job_id);
CREATE INDEX agent_event_agent_idx ON tenure_agent_event (agent, at);

-- memory: one thing that an agent remembers. `seq` rises with every write and is never used again, so a reader asks for what is above
-- the last one it has; PostgreSQL has the writing transaction in its place. `vec` holds 32-bit floats, the most significant byte first.
CREATE TABLE tenure_memory (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT,
    agent TEXT NOT NULL,
    kind TEXT NOT NULL,
    agent_event_id INTEGER,
    job_id TEXT,
    workflow_id TEXT,
    text TEXT NOT NULL,
    text_hash TEXT NOT NULL,
    model TEXT,
    dim INTEGER,
    vec BLOB,
    meta TEXT NOT NULL DEFAULT '{}',
    at INTEGER NOT NULL,
    expires_at INTEGER,
    CONSTRAINT memory_once_per_event UNIQUE (agent_event_id),
    CONSTRAINT memory_named CHECK (trim(agent) <> '' AND trim(kind) <> '' AND trim(text) <> ''),
    CONSTRAINT memory_vector_whole CHECK (
        (model IS NULL) = (vec IS NULL) AND (model IS NULL) = (dim IS NULL) AND (dim IS NULL OR length(vec) = 4 * dim)
    )
) STRICT;
CREATE INDEX memory_vector_idx ON tenure_memory (model, seq) WHERE model IS NOT NULL;
CREATE INDEX memory_agent_idx ON tenure_memory (agent, at);
CREATE INDEX memory_expiry_idx ON tenure_memory (expires_at) WHERE expires_at IS NOT NULL;

-- The words of memories. It keeps no copy of the text: the triggers below tell it what came and went.
CREATE VIRTUAL TABLE tenure_memory_words USING fts5 (
    text, content = 'tenure_memory', content_rowid = 'seq', tokenize = 'porter unicode61'
);
CREATE TRIGGER tenure_memory_added AFTER INSERT ON tenure_memory
BEGIN
    INSERT INTO tenure_memory_words (rowid, text) VALUES (NEW.seq, NEW.text);
END;
CREATE TRIGGER tenure_memory_removed AFTER DELETE ON tenure_memory
BEGIN
    INSERT INTO tenure_memory_words (tenure_memory_words, rowid, text) VALUES ('delete', OLD.seq, OLD.text);
END;

-- What agents did and what they remember. The functions that guard these tables are in functions/memory.sql.

-- agent_event: what an agent did with a task, written in the transaction that ends it; and what programs note beside that. It holds facts
-- only: what a task said stays in its job until it is remembered, without secrets. Append-only.
CREATE TABLE tenure.agent_event (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    agent text NOT NULL,
    kind text NOT NULL,
    job_id uuid,
    workflow_id uuid,
    tenant text,
    -- One event per key: a repeated write finds its own row. Null for the ends of jobs, which the settle's token guards.
    key text,
    data json NOT NULL DEFAULT '{}',
    CONSTRAINT agent_event_named CHECK (btrim(agent) <> '' AND btrim(kind) <> ''),
    CONSTRAINT agent_event_once UNIQUE (key)
);
CREATE INDEX agent_event_job_idx ON tenure.agent_event (job_id);
CREATE INDEX agent_event_agent_idx ON tenure.agent_event (agent, at);

-- words_of: what a text is found by. Letters and digits are words and all else is a gap, as on SQLite: BX-4471 is found by 4471 too.
CREATE FUNCTION tenure.words_of(p_text text) RETURNS tsvector
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT pg_catalog.to_tsvector('pg_catalog.english'::regconfig, pg_catalog.regexp_replace(p_text, '[^[:alnum:]]+', ' ', 'g')) $$;

-- memory: one thing that an agent remembers, found by its words and, where a model embedded it, by its meaning.
-- `vec` is real[], not bytea: pgvector casts that, where it is installed, so that the server itself can compare vectors.
-- `xid` is the transaction that wrote the vector: a reader that has seen every row below a snapshot's xmin asks for the rest only.
CREATE TABLE tenure.memory (
    id uuid PRIMARY KEY,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    tenant text,
    agent text NOT NULL,
    kind text NOT NULL,
    agent_event_id bigint,
    job_id uuid,
    workflow_id uuid,
    text text NOT NULL,
    text_hash text NOT NULL,
    model text,
    dim integer,
    vec real[],
    meta json NOT NULL DEFAULT '{}',
    at timestamptz NOT NULL,
    expires_at timestamptz,
    CONSTRAINT memory_once_per_event UNIQUE (agent_event_id),
    CONSTRAINT memory_named CHECK (btrim(agent) <> '' AND btrim(kind) <> '' AND btrim(text) <> ''),
    CONSTRAINT memory_vector_whole CHECK (
        (model IS NULL) = (vec IS NULL) AND (model IS NULL) = (dim IS NULL) AND (dim IS NULL OR cardinality(vec) = dim)
    )
);
CREATE INDEX memory_words_idx ON tenure.memory USING gin (tenure.words_of(text));
CREATE INDEX memory_vector_idx ON tenure.memory (model, xid) WHERE model IS NOT NULL;
CREATE INDEX memory_agent_idx ON tenure.memory (agent, at);
CREATE INDEX memory_expiry_idx ON tenure.memory (expires_at) WHERE expires_at IS NOT NULL;

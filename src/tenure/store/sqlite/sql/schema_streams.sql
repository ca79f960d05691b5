-- The output of running jobs, column for column as on PostgreSQL. store/streams.py is the specification.

-- stream: one stream of a job. `token` and `part` are of the newest chunk's writer, `last` is its offset; `bytes` is what its chunks count for.
CREATE TABLE tenure_stream (
    job_id TEXT NOT NULL,
    name TEXT NOT NULL,
    token INTEGER NOT NULL,
    part INTEGER NOT NULL DEFAULT 0,
    last INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    is_full INTEGER NOT NULL DEFAULT 0,
    -- Its job was cleaned: nothing is read from it, and prune removes it page by page.
    is_gone INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, name)
) STRICT;
CREATE INDEX stream_gone_idx ON tenure_stream (job_id) WHERE is_gone = 1;

-- stream_chunk: a piece of a stream. Insert-only.
CREATE TABLE tenure_stream_chunk (
    job_id TEXT NOT NULL,
    name TEXT NOT NULL,
    "offset" INTEGER NOT NULL,
    kind TEXT NOT NULL,
    token INTEGER NOT NULL,
    text TEXT NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (job_id, name, "offset"),
    CONSTRAINT stream_chunk_kind CHECK (kind IN ('text', 'reset', 'truncated'))
) STRICT;

-- The output of running jobs. store/streams.py is the specification; the functions are in functions/streams.sql.

-- stream: one stream of a job. `token` and `part` are of the newest chunk's writer, `last` is its offset; `bytes` is what its chunks count for.
CREATE TABLE tenure.stream (
    job_id uuid NOT NULL,
    name text NOT NULL,
    token bigint NOT NULL,
    part bigint NOT NULL DEFAULT 0,
    last bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0,
    is_full boolean NOT NULL DEFAULT false,
    -- Its job was cleaned: nothing is read from it, and prune removes it page by page.
    is_gone boolean NOT NULL DEFAULT false,
    PRIMARY KEY (job_id, name)
) WITH (fillfactor = 50);
CREATE INDEX stream_gone_idx ON tenure.stream (job_id) WHERE is_gone;

-- stream_chunk: a piece of a stream. Insert-only.
CREATE TABLE tenure.stream_chunk (
    job_id uuid NOT NULL,
    name text NOT NULL,
    "offset" bigint NOT NULL,
    kind text NOT NULL,
    token bigint NOT NULL,
    text text NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (job_id, name, "offset"),
    CONSTRAINT stream_chunk_kind CHECK (kind IN ('text', 'reset', 'truncated'))
);

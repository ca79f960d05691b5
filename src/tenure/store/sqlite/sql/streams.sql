-- The output of running jobs: the statements of store/sqlite/streams.py.

-- name: streams
-- The streams of a job by name.
SELECT name, token, part, last, bytes, is_full
FROM tenure_stream
WHERE job_id = ? AND is_gone = 0
ORDER BY name;

-- name: drop_chunks
-- What earlier grants wrote takes more than half: it goes.
DELETE FROM tenure_stream_chunk WHERE job_id = ?;

-- name: forget_bytes
UPDATE tenure_stream SET bytes = 0 WHERE job_id = ?;

-- name: reset_chunks
-- What the streams hold is of earlier grants: readers are told to drop it.
INSERT INTO tenure_stream_chunk (job_id, name, "offset", kind, token, text, at)
SELECT job_id, name, last + 1, 'reset', :token, '', :now
FROM tenure_stream
WHERE job_id = :job_id;

-- name: reset_streams
UPDATE tenure_stream
SET token = :token,
    part = 0,
    last = last + 1,
    bytes = bytes + :cost,
    is_full = 0
WHERE job_id = :job_id;

-- name: put_chunk
INSERT INTO tenure_stream_chunk (job_id, name, "offset", kind, token, text, at)
VALUES (:job_id, :name, :offset, :kind, :token, :text, :now);

-- name: put_stream
-- How a stream stands after chunks were added.
INSERT INTO tenure_stream (job_id, name, token, part, last, bytes, is_full)
VALUES (:job_id, :name, :token, :part, :last, :bytes, :is_full)
ON CONFLICT (job_id, name) DO UPDATE
SET token = excluded.token,
    part = excluded.part,
    last = excluded.last,
    bytes = excluded.bytes,
    is_full = excluded.is_full;

-- name: is_over
-- Whether a job has ended; no row if there is no such job.
SELECT finished_at IS NOT NULL FROM tenure_job WHERE id = ?;

-- name: page
-- What a stream has behind an offset, with the bytes of the page before each chunk.
SELECT "offset", kind, text, token, at, sum(length(CAST(text AS BLOB))) OVER (ORDER BY "offset") - length(CAST(text AS BLOB))
FROM (
    SELECT c."offset", c.kind, c.text, c.token, c.at
    FROM tenure_stream_chunk AS c
    WHERE c.job_id = :job_id AND c.name = :name AND c."offset" > :after
        AND NOT EXISTS (SELECT 1 FROM tenure_stream AS s WHERE s.job_id = :job_id AND s.name = :name AND s.is_gone = 1)
    ORDER BY c."offset"
    LIMIT :limit + 1
)
ORDER BY "offset";

-- name: mark_gone
-- The streams of jobs that were just cleaned.
UPDATE tenure_stream SET is_gone = 1 WHERE job_id IN (SELECT value FROM json_each(:ids)) AND is_gone = 0;

-- name: prune_chunks
-- A page of what streams of cleaned jobs hold.
DELETE FROM tenure_stream_chunk
WHERE (job_id, name, "offset") IN (
    SELECT c.job_id, c.name, c."offset"
    FROM tenure_stream AS s INDEXED BY stream_gone_idx
    CROSS JOIN tenure_stream_chunk AS c ON c.job_id = s.job_id AND c.name = s.name
    WHERE s.is_gone = 1
    LIMIT :limit
);

-- name: prune_streams
-- Streams of cleaned jobs that hold nothing any more.
DELETE FROM tenure_stream
WHERE (job_id, name) IN (
    SELECT s.job_id, s.name
    FROM tenure_stream AS s INDEXED BY stream_gone_idx
    WHERE s.is_gone = 1 AND NOT EXISTS (SELECT 1 FROM tenure_stream_chunk AS c WHERE c.job_id = s.job_id AND c.name = s.name)
    LIMIT :limit
);

-- Statements on Tenure's own tables on PostgreSQL, past its API: large fills in one statement, and cheap counts.

-- name: backlog
-- Waiting jobs as `enqueue` leaves them: $1 jobs over $2 priorities, due $3 seconds from now (0 is due).
INSERT INTO tenure.job (
    id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, state, queue, kind, profile, payload
)
SELECT
    ('01900000-' || lpad(to_hex(n / 65536), 4, '0') || '-7' || lpad(to_hex(n % 65536 / 16), 3, '0')
        || '-8' || lpad(to_hex(n % 16), 3, '0') || '-000000000000')::uuid,
    -(n % $2::integer), now() + $3::integer * interval '1 second', now(), now(), n % $2::integer, 3, $3::integer = 0,
    'queued', 'default', 'noop', 'default', ('{"i":' || n || ',"pad":"' || repeat('x', 180) || '"}')::json
FROM generate_series(0, $1::integer - 1) AS n

-- name: history
-- $1 finished jobs. Payloads of several lengths: rows of one length would leave the same gap on every page, and if a
-- new job happens to fit into it, each new job lands on a page of its own.
INSERT INTO tenure.job (
    id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, state, queue, kind, profile, payload,
    claimed_at, started_at, finished_at, token, attempt
)
SELECT
    ('01800000-' || lpad(to_hex(n / 65536), 4, '0') || '-7' || lpad(to_hex(n % 65536 / 16), 3, '0')
        || '-8' || lpad(to_hex(n % 16), 3, '0') || '-000000000000')::uuid,
    0, past, past, past, 0, 3, true, 'succeeded', 'default', 'noop', 'default',
    json_build_object('i', n, 'pad', repeat('x', 100 + n % 161)), past, past, past, 1, 1
FROM generate_series(1, $1::integer) AS n, (VALUES (now() - interval '1 hour')) AS moment (past)

-- name: unfinished
-- Live jobs, each state by the index that holds it; jobs due tomorrow do not count.
SELECT
    (SELECT count(*) FROM tenure.job WHERE state = 'queued' AND is_due)
    + (SELECT count(*) FROM tenure.job
        WHERE NOT is_due AND state IN ('queued', 'waiting') AND run_at <= now() + interval '1 hour')
    + (SELECT count(*) FROM tenure.job WHERE state IN ('leased', 'running'))

-- name: finished
SELECT count(*) FROM tenure.job WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND state = 'succeeded'

-- name: workers
SELECT count(*) FROM tenure.worker

-- name: take_jobs
-- A long history out of a short one: the ended jobs of queue `scale`, with their attempts and dead letters, are copied again and
-- again, each time with new ids and all moments a step earlier. What is copied was written by the product.
CREATE TEMP TABLE copied_job AS SELECT * FROM tenure.job WHERE queue = 'scale' AND finished_at IS NOT NULL

-- name: take_attempts
CREATE TEMP TABLE copied_attempt AS SELECT a.* FROM tenure.attempt AS a JOIN copied_job AS j ON j.id = a.job_id

-- name: take_letters
CREATE TEMP TABLE copied_letter AS SELECT d.* FROM tenure.dead_letter AS d JOIN copied_job AS j ON j.id = d.job_id

-- name: copied
SELECT count(*) FROM copied_job

-- name: span
-- Milliseconds that the history covers, and a second.
SELECT ceil(extract(epoch FROM max(finished_at) - min(created_at)) * 1000)::bigint + 1000 FROM copied_job

-- name: earlier
-- The id of a moment: the first 48 bits are its milliseconds.
CREATE FUNCTION pg_temp.earlier(p_id uuid, p_ms bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex(('x' || substr(h.hex, 1, 12))::bit(48)::bigint - p_ms), 12, '0') || substr(h.hex, 13))::uuid
    FROM (SELECT replace(p_id::text, '-', '') AS hex) AS h
$$

-- name: shift_jobs
UPDATE copied_job
SET id = pg_temp.earlier(id, $1), run_at = run_at - $1 * interval '1 ms', created_at = created_at - $1 * interval '1 ms',
    updated_at = updated_at - $1 * interval '1 ms', claimed_at = claimed_at - $1 * interval '1 ms',
    started_at = started_at - $1 * interval '1 ms', finished_at = finished_at - $1 * interval '1 ms'

-- name: shift_attempts
UPDATE copied_attempt
SET job_id = pg_temp.earlier(job_id, $1), claimed_at = claimed_at - $1 * interval '1 ms', ended_at = ended_at - $1 * interval '1 ms'

-- name: shift_letters
UPDATE copied_letter
SET id = pg_temp.earlier(id, $1), job_id = pg_temp.earlier(job_id, $1), moved_at = moved_at - $1 * interval '1 ms'

-- name: put_jobs
INSERT INTO tenure.job SELECT * FROM copied_job

-- name: put_attempts
INSERT INTO tenure.attempt SELECT * FROM copied_attempt

-- name: put_letters
INSERT INTO tenure.dead_letter SELECT * FROM copied_letter

-- name: begin
BEGIN

-- name: commit
COMMIT

-- name: vacuum_copied
VACUUM copied_job, copied_attempt, copied_letter

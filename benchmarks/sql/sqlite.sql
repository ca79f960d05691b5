-- Statements on Tenure's own tables on SQLite, past its API: large fills in one statement, and cheap counts.

-- name: backlog
-- Waiting jobs as `enqueue` leaves them: :jobs over :priorities, due :delay microseconds after :now (0 is due).
WITH RECURSIVE series (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM series WHERE n < :jobs - 1)
INSERT INTO tenure_job (
    id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, state, queue, kind, profile, payload
)
SELECT
    printf('01900000-%04x-7%03x-8%03x-000000000000', n / 65536, n % 65536 / 16, n % 16),
    -(n % :priorities), :now + :delay, :now, :now, n % :priorities, 3, :delay = 0, 'queued', 'default', 'noop',
    'default', '{"i":' || n || ',"pad":"' || :pad || '"}'
FROM series

-- name: history
-- :jobs finished jobs, with payloads of several lengths as on PostgreSQL. :past is in microseconds.
WITH RECURSIVE series (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < :jobs)
INSERT INTO tenure_job (
    id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, state, queue, kind, profile, payload,
    claimed_at, started_at, finished_at, token, attempt
)
SELECT
    printf('01800000-%04x-7%03x-8%03x-000000000000', n / 65536, n % 65536 / 16, n % 16),
    0, :past, :past, :past, 0, 3, 1, 'succeeded', 'default', 'noop', 'default',
    json_object('i', n, 'pad', printf('%.*c', 100 + n % 161, 'x')), :past, :past, :past, 1, 1
FROM series

-- name: unfinished
-- Live jobs; jobs due tomorrow do not count. A partial index serves only its own condition, word by word: with `suspicion` left out, this
-- would read the whole table, 160 ms for a million rows, while the drain is timed.
SELECT
    (SELECT count(*) FROM tenure_job WHERE state = 'queued' AND is_due = 1 AND suspicion < 2)
    + (SELECT count(*) FROM tenure_job WHERE state = 'queued' AND is_due = 1 AND suspicion >= 2)
    + (SELECT count(*) FROM tenure_job
        WHERE is_due = 0 AND state IN ('queued', 'waiting') AND run_at <= (unixepoch() + 3600) * 1000000)
    + (SELECT count(*) FROM tenure_job WHERE state IN ('leased', 'running'))

-- name: finished
SELECT count(*) FROM tenure_job WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND state = 'succeeded'

-- name: take_jobs
-- A long history out of a short one: the ended jobs of queue `scale`, with their attempts and dead letters, are copied again and
-- again, each time with new ids and all moments a step earlier. What is copied was written by the product.
CREATE TEMP TABLE copied_job AS SELECT * FROM tenure_job WHERE queue = 'scale' AND finished_at IS NOT NULL

-- name: take_attempts
CREATE TEMP TABLE copied_attempt AS SELECT a.* FROM tenure_attempt AS a JOIN copied_job AS j ON j.id = a.job_id

-- name: take_letters
CREATE TEMP TABLE copied_letter AS SELECT d.* FROM tenure_dead_letter AS d JOIN copied_job AS j ON j.id = d.job_id

-- name: copied
SELECT count(*) FROM copied_job

-- name: span
-- Milliseconds that the history covers, and a second.
SELECT (max(finished_at) - min(created_at)) / 1000 + 1000 FROM copied_job

-- name: shift_jobs
UPDATE copied_job
SET id = earlier(id, :ms), run_at = run_at - 1000 * :ms, created_at = created_at - 1000 * :ms, updated_at = updated_at - 1000 * :ms,
    claimed_at = claimed_at - 1000 * :ms, started_at = started_at - 1000 * :ms, finished_at = finished_at - 1000 * :ms

-- name: shift_attempts
UPDATE copied_attempt
SET job_id = earlier(job_id, :ms), claimed_at = claimed_at - 1000 * :ms, ended_at = ended_at - 1000 * :ms

-- name: shift_letters
UPDATE copied_letter
SET id = earlier(id, :ms), job_id = earlier(job_id, :ms), moved_at = moved_at - 1000 * :ms

-- name: put_jobs
INSERT INTO tenure_job SELECT * FROM copied_job

-- name: put_attempts
INSERT INTO tenure_attempt SELECT * FROM copied_attempt

-- name: put_letters
INSERT INTO tenure_dead_letter SELECT * FROM copied_letter

-- name: begin
BEGIN IMMEDIATE

-- name: commit
COMMIT

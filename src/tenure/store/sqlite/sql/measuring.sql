-- `tenure bench`: the bare engine for comparison, and removing what a run left behind.

-- name: bare_table
-- In a file beside the database, for measuring what one synced commit takes.
CREATE TABLE bare (id INTEGER PRIMARY KEY, body TEXT NOT NULL) STRICT;

-- name: bare_commit
-- One row of some 200 bytes.
INSERT INTO bare (body) VALUES (?);

-- name: bare_read
-- A statement that reads nothing.
SELECT 1;

-- name: drop_look
-- How many jobs of other kinds are in a queue.
SELECT count(*) FROM tenure_job WHERE queue = :name AND kind <> :kind;

-- name: drop_attempts
-- The attempts of a queue's jobs.
DELETE FROM tenure_attempt WHERE job_id IN (SELECT id FROM tenure_job WHERE queue = :name);

-- name: drop_dead_letters
-- The dead letters of a queue's jobs.
DELETE FROM tenure_dead_letter WHERE job_id IN (SELECT id FROM tenure_job WHERE queue = :name);

-- name: drop_effects
-- The effects of a queue's jobs.
DELETE FROM tenure_effect WHERE job_id IN (SELECT id FROM tenure_job WHERE queue = :name);

-- name: drop_events
-- The events of a queue's jobs.
DELETE FROM tenure_event WHERE job_id IN (SELECT id FROM tenure_job WHERE queue = :name);

-- name: drop_jobs
-- All jobs of a queue.
DELETE FROM tenure_job WHERE queue = :name;

-- name: drop_metrics
-- What was counted of a queue.
DELETE FROM tenure_metric WHERE queue = :name;

-- name: drop_metric_spans
-- What was folded of a queue.
DELETE FROM tenure_metric_span WHERE queue = :name;

-- name: drop_metric_parts
-- The counts beside it.
DELETE FROM tenure_metric_part WHERE queue = :name;

-- name: drop_metric_totals
-- Its counters.
DELETE FROM tenure_metric_total WHERE queue = :name;

-- name: drop_tallies
-- What was counted of a kind.
DELETE FROM tenure_tally WHERE kind = :kind;

-- name: drop_workers
-- Workers that served this queue and no other.
DELETE FROM tenure_worker WHERE queues = json_array(:name);

-- name: drop_queue
-- The queue itself, once it is empty.
DELETE FROM tenure_queue WHERE name = :name;

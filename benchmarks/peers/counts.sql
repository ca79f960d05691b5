-- How many jobs each peer's own tables still hold as waiting or running, and how many as done well.

-- name: graphile-worker_unfinished
-- A job is deleted when it is done.
SELECT count(*) FROM graphile_worker._private_jobs;

-- name: pg-boss_unfinished
-- created, retry and active come before completed in its enum.
SELECT count(*) FROM pgboss.job WHERE state < 'completed';

-- name: pg-boss_finished
SELECT count(*) FROM pgboss.job WHERE state = 'completed';

-- name: pgqueuer_unfinished
-- A job is deleted when it ends; a line in its log table remains.
SELECT count(*) FROM pgqueuer;

-- name: procrastinate_unfinished
SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing');

-- name: procrastinate_finished
SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded';

-- name: honker_unfinished
-- A job is deleted when it is acknowledged.
SELECT count(*) FROM _honker_live;

-- name: huey_unfinished
-- A task is deleted before its handler runs: these have not begun.
SELECT count(*) FROM task;

-- name: litequeue_unfinished
-- 0 is ready, 1 is locked, 2 is done. One count per value, so that the index on status serves it.
SELECT (SELECT count(*) FROM Queue WHERE status = 0) + (SELECT count(*) FROM Queue WHERE status = 1);

-- name: litequeue_finished
SELECT count(*) FROM Queue WHERE status = 2;

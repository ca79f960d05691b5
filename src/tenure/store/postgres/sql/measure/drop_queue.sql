-- drop_queue: the jobs of a queue, what hangs on them, and the queue. The row of the queue goes first: it is locked by
-- nobody but those who change queues.
WITH queue AS (
    DELETE FROM tenure.queue WHERE name = %(name)s
), gone AS (
    DELETE FROM tenure.job WHERE queue = %(name)s RETURNING id
), attempts AS (
    DELETE FROM tenure.attempt WHERE job_id IN (SELECT id FROM gone)
), letters AS (
    DELETE FROM tenure.dead_letter WHERE job_id IN (SELECT id FROM gone)
), effects AS (
    DELETE FROM tenure.effect WHERE job_id IN (SELECT id FROM gone)
), events AS (
    DELETE FROM tenure.event WHERE job_id IN (SELECT id FROM gone)
), metrics AS (
    DELETE FROM tenure.metric WHERE queue = %(name)s
), tallies AS (
    DELETE FROM tenure.tally WHERE kind = %(kind)s
), workers AS (
    DELETE FROM tenure.worker WHERE queues = ARRAY[%(name)s::text]
), waiters AS (
    DELETE FROM tenure.waiter WHERE queue = %(name)s
)
SELECT count(*) FROM gone

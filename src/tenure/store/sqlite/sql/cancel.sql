-- cancel: a job that nobody holds ends at once; one that a worker holds is asked to stop, and its worker settles it.
-- After this no job goes on: a queued one has left the queue, and every later end of a held one becomes `cancelled`.
UPDATE tenure_job
SET cancel_requested_at = coalesce(cancel_requested_at, :now),
    state = CASE WHEN state IN ('leased', 'running') THEN state ELSE 'cancelled' END,
    finished_at = CASE WHEN state IN ('leased', 'running') THEN NULL ELSE :now END,
    failure_class = CASE WHEN state IN ('leased', 'running') THEN failure_class ELSE 'cancelled' END,
    waiting_for = NULL,
    dedup_slot = CASE
        WHEN state NOT IN ('leased', 'running') AND substr(dedup_slot, 1, 1) = 'a' THEN NULL
        ELSE dedup_slot
    END,
    updated_at = :now
WHERE id = :job_id AND state IN ('queued', 'waiting', 'leased', 'running')
RETURNING state;

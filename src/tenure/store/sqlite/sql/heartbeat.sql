-- heartbeat: extend one lease to now + lease, within the queue's bound; never shorter than it was, never for a lease that is lost.
-- RETURNING names bare columns only: there SQLite 3.40 answers `x IS NOT NULL` with 1 even for a NULL.
UPDATE tenure_job
SET lease_until = max(lease_until, :now + CAST(1000000 * (
        SELECT min(coalesce(:lease_seconds, q.lease_seconds), q.lease_max_seconds)
        FROM tenure_queue AS q
        WHERE q.name = tenure_job.queue
    ) AS INTEGER)),
    state = CASE WHEN :started THEN 'running' ELSE state END,
    started_at = CASE WHEN :started THEN coalesce(started_at, :now) ELSE started_at END,
    progress = coalesce(:progress, progress),
    updated_at = :now
WHERE id = :job_id
    AND token = :token
    AND state IN ('leased', 'running')
    AND lease_until > :now
RETURNING cancel_requested_at, started_at;

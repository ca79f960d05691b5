-- start: leased → running; a running job stays so. Fenced like every write of a worker.
UPDATE tenure_job
SET state = 'running',
    started_at = coalesce(started_at, :now),
    progress = coalesce(:progress, progress),
    updated_at = :now
WHERE id = :job_id
    AND token = :token
    AND state IN ('leased', 'running')
    AND lease_until > :now
RETURNING started_at;

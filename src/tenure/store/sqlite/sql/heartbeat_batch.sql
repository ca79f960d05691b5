-- heartbeat_batch: heartbeat.sql for many jobs held under the same token (a JSON array of ids), none with progress to store.
UPDATE tenure_job INDEXED BY sqlite_autoindex_tenure_job_1
SET lease_until = max(lease_until, :now + CAST(1000000 * (
        SELECT min(coalesce(:lease_seconds, q.lease_seconds), q.lease_max_seconds)
        FROM tenure_queue AS q
        WHERE q.name = tenure_job.queue
    ) AS INTEGER)),
    state = CASE WHEN :started THEN 'running' ELSE state END,
    started_at = CASE WHEN :started THEN coalesce(started_at, :now) ELSE started_at END,
    updated_at = :now
WHERE id IN (SELECT value FROM json_each(:ids))
    AND token = :token
    AND state IN ('leased', 'running')
    AND lease_until > :now;

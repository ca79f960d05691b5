-- complete_plain: end one attempt well, with nothing to keep of it. The guard is that of complete.sql.
UPDATE tenure_job
SET state = 'succeeded',
    finished_at = ?,
    updated_at = ?,
    started_at = coalesce(started_at, claimed_at),
    lease_owner = NULL,
    lease_until = NULL,
    dedup_slot = CASE WHEN substr(dedup_slot, 1, 1) = 'a' THEN NULL ELSE dedup_slot END
WHERE id = ?
    AND token = ?
    AND state IN ('leased', 'running')
    AND lease_until > ?
    AND cancel_requested_at IS NULL;

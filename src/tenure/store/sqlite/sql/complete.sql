-- complete: end one attempt well.
-- Invariant: only the grant that holds the lease may write. `token` rises in claim and nowhere else, so a late worker matches no
-- row; a lease that ran out is lost even if nobody took the job yet. A job that was asked to stop never succeeds.
UPDATE tenure_job
SET state = 'succeeded',
    result = ?,
    result_summary = ?,
    artifacts_path = coalesce(?, artifacts_path),
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

-- claim_again: jobs that this worker holds without knowing it, because the reply to an earlier claim was lost.
-- The token stays: it is the same grant, handed over once more.
UPDATE tenure_job
SET lease_until = max(lease_until, :now + min(
        coalesce(:lease, (SELECT CAST(1000000 * lease_seconds AS INTEGER) FROM tenure_queue WHERE name = tenure_job.queue)),
        (SELECT CAST(1000000 * lease_max_seconds AS INTEGER) FROM tenure_queue WHERE name = tenure_job.queue)
    )),
    updated_at = :now
WHERE rowid IN (
    SELECT rowid
    FROM tenure_job INDEXED BY job_lease_idx
    WHERE state IN ('leased', 'running')
        AND lease_owner = :worker
        AND lease_until > :now
        AND id NOT IN (SELECT value FROM json_each(:held))
    ORDER BY claimed_at, id
    LIMIT :limit
)
RETURNING rowid, state, lease_until;

-- job_end: move the job as its attempt row says: queued again, waiting, or ended.
-- A refunded attempt (released, suspended) was not the job's fault. A slot of scope active is free once the job has ended.
UPDATE tenure_job
SET state = e.state,
    run_at = coalesce(e.run_at, tenure_job.run_at),
    is_due = e.state = 'queued' AND e.run_at <= :now,  -- a suspended job is found by its time, however short
    attempt = CASE WHEN e.outcome IN ('released', 'suspended') THEN max(tenure_job.attempt - 1, 0) ELSE tenure_job.attempt END,
    crashes = tenure_job.crashes + (e.outcome = 'expired'),
    waiting_for = CASE e.state WHEN 'waiting' THEN :waiting_for END,
    last_error = CASE WHEN e.outcome IN ('released', 'suspended') THEN tenure_job.last_error ELSE coalesce(e.error, tenure_job.last_error) END,
    failure_class = CASE WHEN e.outcome IN ('released', 'suspended') THEN tenure_job.failure_class ELSE e.failure_class END,
    dedup_slot = CASE WHEN e.run_at IS NULL AND substr(dedup_slot, 1, 1) = 'a' THEN NULL ELSE dedup_slot END,
    finished_at = CASE WHEN e.run_at IS NULL THEN :now END,
    lease_owner = NULL,
    lease_until = NULL,
    updated_at = :now
FROM (
    SELECT a.job_id, a.token, a.outcome, a.error, a.failure_class, a.run_at,
        CASE
            WHEN a.outcome = 'suspended' THEN 'waiting'
            WHEN a.run_at IS NOT NULL THEN 'queued'
            WHEN a.outcome <> 'expired' THEN a.outcome
            WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled'
            ELSE 'dead'
        END AS state
    FROM tenure_attempt AS a
    JOIN tenure_job AS j ON j.id = a.job_id
    WHERE a.job_id = :job_id AND a.token = :token
) AS e
WHERE tenure_job.id = :job_id
    AND tenure_job.token = :token
    AND tenure_job.state IN ('leased', 'running')
RETURNING state, run_at, queue;

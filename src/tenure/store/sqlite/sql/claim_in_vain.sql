-- claim_in_vain: a row if claim_at_once.sql did nothing because there is nothing to claim, on the terms that were known.
SELECT 1
WHERE (SELECT stamp FROM tenure_stamp) = :stamp
    AND NOT EXISTS (SELECT 1 FROM tenure_job INDEXED BY job_claim_idx WHERE queue = :queue AND state = 'queued' AND is_due = 1)
    AND NOT EXISTS (SELECT 1 FROM tenure_job INDEXED BY job_lease_idx WHERE state IN ('leased', 'running') AND lease_until <= :now)
    AND NOT EXISTS (
        SELECT 1 FROM tenure_job INDEXED BY job_due_idx WHERE is_due = 0 AND state IN ('queued', 'waiting') AND run_at <= :now
    );

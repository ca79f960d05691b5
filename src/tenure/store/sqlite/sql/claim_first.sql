-- claim_first: the earliest end of a lease, and the earliest time at which a job comes due, both from the head of an index; and the stamp.
SELECT (SELECT min(lease_until) FROM tenure_job INDEXED BY job_lease_idx WHERE state IN ('leased', 'running')),
    (SELECT min(run_at) FROM tenure_job INDEXED BY job_due_idx WHERE is_due = 0 AND state IN ('queued', 'waiting')),
    (SELECT stamp FROM tenure_stamp);

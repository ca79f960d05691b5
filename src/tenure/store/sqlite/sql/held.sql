-- held: whether this grant still holds the job.
SELECT queue
FROM tenure_job
WHERE id = :job_id AND token = :token AND state IN ('leased', 'running') AND lease_until > :now;

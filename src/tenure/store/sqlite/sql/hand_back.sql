-- hand_back: a row if a grant is as it was made. Whoever handed it over may give it back; once its worker has asked for it, its lease was
-- set anew, and it is the worker's.
SELECT 1
FROM tenure_job
WHERE id = :job_id
    AND token = :token
    AND state IN ('leased', 'running')
    AND lease_until = :lease_until
    AND updated_at = :granted_at;

-- attempt_known: what is on record for this grant, so that an outcome sent twice is answered as it was the first time.
-- A success leaves no attempt row: the job itself says so, as long as its token is the same.
SELECT j.state,
    j.token = :token AS is_newest,
    a.outcome,
    a.run_at,
    j.state IN ('leased', 'running') AND j.token = :token AND j.lease_until > :now AS is_held
FROM tenure_job AS j
LEFT JOIN tenure_attempt AS a ON a.job_id = j.id AND a.token = :token
WHERE j.id = :job_id;

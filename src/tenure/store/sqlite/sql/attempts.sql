-- attempts: the attempts of a job that did not end well, oldest first.
SELECT job_id, token, attempt, worker, claimed_at, ended_at, outcome, failure_class, error, fingerprint, run_at
FROM tenure_attempt
WHERE job_id = ?
ORDER BY token;

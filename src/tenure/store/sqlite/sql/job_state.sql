-- job_state: where a job stands.
SELECT state FROM tenure_job WHERE id = ?;

-- clone_look: whether a job has ended and still has its payload.
SELECT state, payload IS NULL, queue FROM tenure_job WHERE id = ?;

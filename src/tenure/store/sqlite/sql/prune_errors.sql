-- prune_errors: what failed attempts said goes with the job's own error.
UPDATE tenure_attempt SET error = NULL WHERE job_id IN (SELECT value FROM json_each(:ids)) AND error IS NOT NULL;

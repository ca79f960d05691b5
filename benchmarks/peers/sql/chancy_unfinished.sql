SELECT count(*)
FROM chancy_jobs
WHERE state IN ('pending', 'running', 'retrying');

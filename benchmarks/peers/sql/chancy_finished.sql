SELECT count(*)
FROM chancy_jobs
WHERE state = 'succeeded';

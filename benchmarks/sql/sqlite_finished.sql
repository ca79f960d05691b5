SELECT count(*)
FROM bare_job
WHERE state = 'succeeded';

SELECT count(*)
FROM procrastinate_jobs
WHERE status = 'succeeded';

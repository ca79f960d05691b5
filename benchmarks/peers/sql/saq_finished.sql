SELECT count(*)
FROM saq_jobs
WHERE status = 'complete';

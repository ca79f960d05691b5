SELECT count(*)
FROM saq_jobs
WHERE status IN ('new', 'queued', 'active', 'aborting');

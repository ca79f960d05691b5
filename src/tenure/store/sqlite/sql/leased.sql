-- leased: which of these jobs (a JSON array of ids) were claimed and not started yet.
SELECT id FROM tenure_job WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'leased';

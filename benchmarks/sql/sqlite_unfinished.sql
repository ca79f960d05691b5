SELECT
    (SELECT count(*) FROM bare_job WHERE state = 'queued')
    + (SELECT count(*) FROM bare_job WHERE state = 'running');

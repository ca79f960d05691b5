SELECT
    (SELECT count(*) FROM bare.job WHERE state = 'queued')
    + (SELECT count(*) FROM bare.job WHERE state = 'running');

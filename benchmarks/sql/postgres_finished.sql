SELECT
    (SELECT count(*) FROM bare.job WHERE state = 'succeeded')
    + (SELECT count(*) FROM bare.history);

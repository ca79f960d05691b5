-- Live jobs of Tenure, each state by the index that holds it.
SELECT
    (SELECT count(*) FROM {job} WHERE state = 'queued' AND is_due)
    + (SELECT count(*) FROM {job} WHERE NOT is_due AND state IN ('queued', 'waiting') AND run_at <= {soon})
    + (SELECT count(*) FROM {job} WHERE state IN ('leased', 'running'))

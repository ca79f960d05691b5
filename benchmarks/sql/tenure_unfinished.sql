-- Live jobs of Tenure, each state by the index that holds it. SQLite takes a partial index only for its condition word by word.
SELECT
    (SELECT count(*) FROM {job} WHERE state = 'queued' AND {is_due})
    + (SELECT count(*) FROM {job} WHERE {is_later} AND state IN ('queued', 'waiting') AND run_at <= {soon})
    + (SELECT count(*) FROM {job} WHERE state IN ('leased', 'running'))

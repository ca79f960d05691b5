-- metric_drop: the oldest minutes go.
DELETE FROM tenure_metric
WHERE rowid IN (SELECT rowid FROM tenure_metric WHERE minute <= :until ORDER BY minute, queue LIMIT :limit);

-- drop_metrics: what was counted of a queue.
DELETE FROM tenure_metric WHERE queue = :name;

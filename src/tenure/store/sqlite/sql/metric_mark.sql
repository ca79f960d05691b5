-- metric_mark: up to where minutes are counted.
SELECT counted_until FROM tenure_metric_mark;

-- metric_move_mark: every minute before that is counted.
UPDATE tenure_metric_mark SET counted_until = ?;

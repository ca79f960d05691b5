-- tally_move_mark: everything up to there is counted.
UPDATE tenure_tally_mark SET counted_until = ?;

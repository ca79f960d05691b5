-- tally_mark: up to where the tally has counted.
SELECT counted_until FROM tenure_tally_mark;

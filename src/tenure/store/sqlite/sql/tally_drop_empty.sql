-- tally_drop_empty: rows of which nothing is left.
DELETE FROM tenure_tally WHERE jobs <= 0;

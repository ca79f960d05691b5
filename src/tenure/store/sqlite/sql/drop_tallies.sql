-- drop_tallies: what was counted of a kind.
DELETE FROM tenure_tally WHERE kind = :kind;

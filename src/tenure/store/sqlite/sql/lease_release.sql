-- lease_release: give a named lease back, if it is still one's own in that term. The row stays, so that the term goes on rising.
UPDATE tenure_lease
SET until = :now
WHERE name = :name AND owner = :owner AND term = :term AND until > :now;

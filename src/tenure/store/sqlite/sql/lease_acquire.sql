-- lease_acquire: take a named lease that is free or has run out, or extend one's own.
-- Invariant: one row decides, so there are never two owners in a term; the term rises exactly when the owner changes.
INSERT INTO tenure_lease (name, owner, term, acquired_at, until)
VALUES (:name, :owner, 1, :now, :until)
ON CONFLICT (name) DO UPDATE
SET term = term + (owner <> excluded.owner),
    acquired_at = CASE WHEN owner = excluded.owner THEN acquired_at ELSE excluded.acquired_at END,
    owner = excluded.owner,
    until = excluded.until
WHERE until <= :now OR owner = excluded.owner;

-- lease_read: who has a named lease.
SELECT owner, term, until FROM tenure_lease WHERE name = ?;

-- One migration at a time in a database. Held until the transaction ends, so a process that dies leaves no lock behind.
SELECT pg_catalog.pg_advisory_xact_lock(8390046254714413154);

-- others: how many jobs of other kinds are in a queue.
SELECT count(*)
FROM tenure.job AS j
WHERE j.queue = %(name)s
    AND j.kind <> %(kind)s

-- claim_read: of jobs given by their rowids what claim_pick.sql tells, row by row, with the queue of each.
SELECT rank, run_at, id, kind, token, attempt, max_attempts, priority, crashes, payload, queue
FROM tenure_job
WHERE rowid IN (SELECT value FROM json_each(:rowids));

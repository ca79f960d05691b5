-- claim: grant the jobs that were picked, given by their rowids. Nobody else writes between the look and the grant.
-- Invariant: `token` rises here and nowhere else, so whoever held the job before matches no row any more.
-- `attempt` is counted now, not at the end: a job that kills its worker still spends its budget.
UPDATE tenure_job
SET state = :state,
    token = token + 1,
    attempt = attempt + 1,
    lease_owner = :worker,
    lease_until = :lease_until,
    claimed_at = :now,
    started_at = coalesce(started_at, :started_at),
    updated_at = :now
WHERE rowid IN (SELECT value FROM json_each(:rowids))
    AND state = 'queued';

-- workers: every worker that has a row, most recently seen first, with what it holds and whether it leads.
SELECT w.id, w.hostname, w.pid, w.queues, w.kinds, w.concurrency, w.version, w.executor_kind, w.status, w.current_job_id, w.info,
    w.started_at, w.last_seen_at, w.ticks,
    coalesce(held.jobs, 0),
    lead.until,
    lead.until IS NOT NULL AND lead.until > :now
FROM tenure_worker AS w
LEFT JOIN (
    SELECT lease_owner, count(*) AS jobs
    FROM tenure_job INDEXED BY job_lease_idx
    WHERE state IN ('leased', 'running')
    GROUP BY lease_owner
) AS held ON held.lease_owner = w.id
LEFT JOIN tenure_lease AS lead ON lead.name = 'leader' AND lead.owner = w.id
ORDER BY w.last_seen_at DESC, w.id;

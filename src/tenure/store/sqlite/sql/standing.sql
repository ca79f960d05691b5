-- standing: what stands between one job and its claim.
SELECT
    CASE WHEN j.state <> 'queued' THEN 0 ELSE (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM tenure_job AS a INDEXED BY job_claim_idx
            WHERE a.queue = j.queue AND a.state = 'queued' AND a.is_due = 1
                AND (a.rank, a.run_at, a.id) < (j.rank, j.run_at, j.id)
            LIMIT :cap
        )
    ) END,
    (
        SELECT count(*)
        FROM tenure_job AS h INDEXED BY job_lease_idx
        WHERE h.state IN ('leased', 'running') AND h.queue = j.queue
    ),
    (
        SELECT count(*)
        FROM tenure_job AS h INDEXED BY job_lease_idx
        WHERE h.state IN ('leased', 'running') AND h.queue = j.queue AND h.concurrency_key = j.concurrency_key
    ),
    (SELECT e.kind FROM tenure_event AS e INDEXED BY event_job_idx WHERE e.job_id = j.id ORDER BY e.seq DESC LIMIT 1)
FROM tenure_job AS j
WHERE j.id = :job_id;

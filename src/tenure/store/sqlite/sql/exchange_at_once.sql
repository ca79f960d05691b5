-- exchange_at_once: settle plain successes and claim from one queue by one statement that is its own transaction (see exchange_setup.sql).
-- Nothing is done if the terms were read under another stamp, a lease ran out or a job came due: then the long way has its turn.
INSERT INTO tenure_exchange (plain, plain_number, token, rich, rich_number, now, queue, "limit", worker, state, started_at, lease_until)
SELECT :plain, :plain_number, :token, :rich, :rich_number, :now, :queue, :limit, :worker, :state, :started_at, :lease_until
FROM tenure_stamp
WHERE stamp = :stamp
    AND NOT EXISTS (SELECT 1 FROM tenure_job INDEXED BY job_lease_idx WHERE state IN ('leased', 'running') AND lease_until <= :now)
    AND NOT EXISTS (
        SELECT 1 FROM tenure_job INDEXED BY job_due_idx WHERE is_due = 0 AND state IN ('queued', 'waiting') AND run_at <= :now
    );

-- claim_held: how many jobs of a queue are held now, by concurrency key. A lease that was not taken back yet still counts.
SELECT concurrency_key, count(*)
FROM tenure_job INDEXED BY job_lease_idx
WHERE state IN ('leased', 'running') AND queue = :queue
GROUP BY concurrency_key;

-- claim_candidates: the due jobs of one queue in claim order, read from the index row by row until the claim has enough.
SELECT rank, run_at, id, rowid, queue, NULL AS concurrency_key
FROM tenure_job INDEXED BY job_claim_idx
WHERE queue = :queue AND state = 'queued' AND is_due = 1
ORDER BY rank, run_at, id;

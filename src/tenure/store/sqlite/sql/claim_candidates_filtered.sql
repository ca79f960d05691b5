-- claim_candidates_filtered: the same for some kinds or affinity keys only (JSON arrays, NULL for all), with the concurrency key.
SELECT rank, run_at, id, rowid, queue, concurrency_key
FROM tenure_job INDEXED BY job_claim_idx
WHERE queue = :queue AND state = 'queued' AND is_due = 1
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
    AND (
        :affinity IS NULL
        OR affinity_key IN (SELECT value FROM json_each(:affinity))
        OR (affinity_key IS NULL AND :affinity_none)
    )
ORDER BY rank, run_at, id;

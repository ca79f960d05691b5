-- backlog: a row if the queue holds more due jobs than so many. Walks that far along the claim's index and no further.
SELECT 1
FROM tenure_job INDEXED BY job_claim_idx
WHERE queue = ?1 AND state = 'queued' AND is_due = 1
LIMIT 1 OFFSET ?2;

-- complete_plain: end many attempts well that leave no result: a JSON array of ids, all under the same token.
-- The guard of each is that of complete.sql. Most jobs succeed at once, so that most of a batch has token 1 and goes as one array.
UPDATE tenure_job INDEXED BY sqlite_autoindex_tenure_job_1
SET state = 'succeeded',
    result = NULL,
    result_summary = NULL,
    finished_at = :now,
    updated_at = :now,
    started_at = coalesce(started_at, claimed_at),
    lease_owner = NULL,
    lease_until = NULL,
    dedup_slot = CASE WHEN substr(dedup_slot, 1, 1) = 'a' THEN NULL ELSE dedup_slot END
WHERE id IN (SELECT value FROM json_each(:done))
    AND token = :token
    AND state IN ('leased', 'running')
    AND lease_until > :now
    AND cancel_requested_at IS NULL;

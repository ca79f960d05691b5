-- complete_batch: end many attempts well: a JSON array of [id, token, result, result_summary, artifacts_path].
-- The guard of each is that of complete.sql. One statement over an array takes less time than one statement per job. INDEXED BY keeps
-- the array outside and the job inside: the other way round it would be read once for every held job.
UPDATE tenure_job INDEXED BY sqlite_autoindex_tenure_job_1
SET state = 'succeeded',
    result = done.value ->> 2,
    result_summary = done.value ->> 3,
    artifacts_path = coalesce(done.value ->> 4, artifacts_path),
    finished_at = :now,
    updated_at = :now,
    started_at = coalesce(started_at, claimed_at),
    lease_owner = NULL,
    lease_until = NULL,
    dedup_slot = CASE WHEN substr(dedup_slot, 1, 1) = 'a' THEN NULL ELSE dedup_slot END
FROM json_each(:done) AS done
WHERE tenure_job.id = done.value ->> 0
    AND token = done.value ->> 1
    AND state IN ('leased', 'running')
    AND lease_until > :now
    AND cancel_requested_at IS NULL;

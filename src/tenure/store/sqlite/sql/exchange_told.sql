-- exchange_told: what the last exchange of this connection granted, as claim_pick.sql tells it, in claim order. Read after the commit: what
-- somebody has taken away since is not told. Worker and moment are
-- read from a table because with values SQLite may read all jobs into a filter first.
SELECT count(*),
    group_concat(
        printf('%s%s%s %d %d %d %d %d%s%s', id, char(31), kind, token, attempt, max_attempts, priority, crashes, char(31), payload),
        char(30)
    ),
    json_group_array(id) FILTER (WHERE kind IS NULL OR payload IS NULL OR any_extra IS NOT NULL)
FROM (
    SELECT job.id, job.token, job.attempt, job.max_attempts, job.priority, job.crashes,
        CASE WHEN job.kind NOT GLOB '*[' || char(30) || '-' || char(31) || ']*' THEN job.kind END AS kind,
        CASE WHEN length(CAST(job.payload AS BLOB)) <= 8000 THEN job.payload END AS payload,
        coalesce(
            idempotency_key, progress, backoff, affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor,
            created_by_user_id, requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, artifacts_path
        ) AS any_extra
    FROM tenure_picked AS picked
    CROSS JOIN json_each(picked.rowids) AS place
    CROSS JOIN tenure_job AS job ON job.rowid = place.value
    WHERE job.lease_owner = picked.worker AND job.claimed_at = picked.now
);

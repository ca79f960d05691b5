-- exchange_told: what an exchange granted to a worker at a moment, as claim_pick.sql tells it, in claim order. Read after the commit, on any
-- connection: what somebody has taken away since is not told. The values stand in a row of their own because SQLite, given a condition with
-- values only, may read all jobs into a filter first.
SELECT count(*),
    group_concat(
        printf('%s%s%s %d %d %d %d %d%s%s', id, char(31), kind, token, attempt, max_attempts, priority, crashes, char(31), payload),
        char(30)
    ),
    json_group_array(id) FILTER (WHERE payload IS NULL OR any_extra IS NOT NULL)
FROM (
    SELECT job.id, job.kind, job.token, job.attempt, job.max_attempts, job.priority, job.crashes,
        CASE WHEN length(CAST(job.payload AS BLOB)) <= 8000 THEN job.payload END AS payload,
        coalesce(
            idempotency_key, progress, backoff, affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor,
            created_by_user_id, requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, artifacts_path
        ) AS any_extra
    FROM (SELECT :rowids AS rowids, :worker AS worker, :now AS now) AS picked
    CROSS JOIN json_each(picked.rowids) AS place
    CROSS JOIN tenure_job AS job ON job.rowid = place.value
    WHERE job.lease_owner = picked.worker AND job.claimed_at = picked.now
);

-- claim_pick: the first due jobs of one queue: how many, their rowids, what their grants tell, and the ids of those that are not whole.
-- One row back whatever the limit: Python lets go of its lock at every step of a statement, and a thousand rows are a thousand steps.
-- Jobs are separated by the character 30, their parts by 31: no JSON text and no kind has these. A job with a long payload or rarely set
-- columns is not whole; claim_rest.sql reads the rest of it.
SELECT count(*),
    json_group_array(job),
    group_concat(
        printf('%s%s%s %d %d %d %d %d%s%s', id, char(31), kind, token, attempt, max_attempts, priority, crashes, char(31), payload),
        char(30)
    ),
    json_group_array(id) FILTER (WHERE payload IS NULL OR any_extra IS NOT NULL)
FROM (
    SELECT rowid AS job, id, kind, token, attempt, max_attempts, priority, crashes,
        CASE WHEN length(CAST(payload AS BLOB)) <= 8000 THEN payload END AS payload,
        coalesce(
            idempotency_key, progress, backoff, affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor,
            created_by_user_id, requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, artifacts_path
        ) AS any_extra
    FROM tenure_job INDEXED BY job_claim_idx
    WHERE queue = :queue AND state = 'queued' AND is_due = 1
    ORDER BY rank, run_at, id
    LIMIT :limit
);

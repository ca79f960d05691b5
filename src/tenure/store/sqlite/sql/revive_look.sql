-- revive_look: whether a job may be revived, and the slot it would take again.
SELECT j.token,
    CASE
        WHEN j.state NOT IN ('failed', 'dead', 'cancelled') THEN 'it is ' || j.state
        WHEN q.revive <> 'revive' THEN 'its queue allows only a clone'
        WHEN j.payload IS NULL THEN 'its payload was pruned'
        WHEN holder.id IS NOT NULL THEN 'its key is held by job ' || holder.id
    END AS why,
    j.slot
FROM (
    SELECT job.*,
        CASE
            WHEN job.dedup_slot IS NOT NULL THEN job.dedup_slot
            WHEN job.idempotency_key IS NOT NULL AND queue.key_scope <> 'none' THEN
                substr(queue.key_scope, 1, 1) || '|' || queue.profile || char(31)
                || CASE queue.key_space WHEN 'kind' THEN length(job.kind) || char(31) || job.kind ELSE '' END
                || char(31) || job.idempotency_key
        END AS slot
    FROM tenure_job AS job
    JOIN tenure_queue AS queue ON queue.name = job.queue
    WHERE job.id = :job_id
) AS j
JOIN tenure_queue AS q ON q.name = j.queue
LEFT JOIN tenure_job AS holder ON holder.dedup_slot = j.slot AND holder.id <> j.id;

-- clone_holder: who holds the key that a clone would have taken; the clone itself if it is there already.
SELECT holder.id
FROM tenure_job AS j
JOIN tenure_queue AS q ON q.name = j.queue
JOIN tenure_job AS holder ON holder.id = :new_id OR holder.dedup_slot =
    'a|' || j.profile || char(31) || CASE q.key_space WHEN 'kind' THEN length(j.kind) || char(31) || j.kind ELSE '' END || char(31) || j.idempotency_key
WHERE j.id = :job_id
ORDER BY holder.id = :new_id DESC
LIMIT 1;

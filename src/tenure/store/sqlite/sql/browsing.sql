-- Reads for pages: each looks at the newest :scan rows, through an index, and at nothing else.

-- name: browse_span
-- The jobs to look at, as their number, the first and the last of them: the newest ones below a place. Ids are of the
-- digits 0 to f, so 'g' stands above all of them.
SELECT count(*), max(id), min(id)
FROM (SELECT id FROM tenure_job WHERE id < coalesce(:after, 'g') ORDER BY id DESC LIMIT :scan);

-- name: browse_workflow
SELECT id FROM tenure_job INDEXED BY job_workflow_idx
WHERE workflow_id = :workflow_id AND id < coalesce(:after, 'g')
ORDER BY id DESC LIMIT :scan;

-- name: browse_parent
SELECT id FROM tenure_job INDEXED BY job_parent_idx
WHERE parent_id = :parent_id AND id < coalesce(:after, 'g')
ORDER BY id DESC LIMIT :scan;

-- name: browse_held
SELECT id FROM tenure_job INDEXED BY job_lease_idx
WHERE state IN ('leased', 'running') AND lease_owner = :worker AND id < coalesce(:after, 'g')
ORDER BY id DESC LIMIT :scan;

-- name: browse_matching
-- Of the jobs between two places (both belong to the look): how many match, by the state that people see, and the
-- first of those that are in one of :states.
WITH matching AS MATERIALIZED (
    SELECT
        id,
        CASE
            WHEN cleaned_at IS NOT NULL THEN 'cleaned'
            WHEN state = 'queued' AND attempt > 0 AND failure_class IS NOT NULL THEN 'retry_waiting'
            ELSE state
        END AS shown
    FROM tenure_job
    WHERE id <= :first AND id >= :last
        AND (:workflow_id IS NULL OR workflow_id = :workflow_id)
        AND (:parent_id IS NULL OR parent_id = :parent_id)
        AND (:worker IS NULL OR (lease_owner = :worker AND state IN ('leased', 'running')))
        AND (
            :stored_states IS NULL
            OR state IN (SELECT value FROM json_each(:stored_states))
            OR (
                'retry_waiting' IN (SELECT value FROM json_each(:stored_states))
                AND state = 'queued' AND attempt > 0 AND failure_class IS NOT NULL
            )
            OR ('cleaned' IN (SELECT value FROM json_each(:stored_states)) AND cleaned_at IS NOT NULL)
        )
        AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
        AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
        AND (:key IS NULL OR idempotency_key = :key)
        AND (:tenant IS NULL OR tenant = :tenant)
        AND (:since IS NULL OR created_at >= :since)
        AND (:error IS NULL OR instr(lower(last_error), lower(:error)) > 0)
)
SELECT
    (SELECT json_group_object(shown, jobs) FROM (SELECT shown, count(*) AS jobs FROM matching GROUP BY shown)),
    (
        SELECT json_group_array(id)
        FROM (
            SELECT id
            FROM matching
            WHERE :states IS NULL OR shown IN (SELECT value FROM json_each(:states))
            ORDER BY id DESC
            LIMIT :limit + 1
        )
    );

-- name: browse_those
-- The same for jobs that an index named, by their ids.
WITH matching AS MATERIALIZED (
    SELECT
        id,
        CASE
            WHEN cleaned_at IS NOT NULL THEN 'cleaned'
            WHEN state = 'queued' AND attempt > 0 AND failure_class IS NOT NULL THEN 'retry_waiting'
            ELSE state
        END AS shown
    FROM tenure_job
    WHERE id IN (SELECT value FROM json_each(:ids))
        AND (:workflow_id IS NULL OR workflow_id = :workflow_id)
        AND (:parent_id IS NULL OR parent_id = :parent_id)
        AND (:worker IS NULL OR (lease_owner = :worker AND state IN ('leased', 'running')))
        AND (
            :stored_states IS NULL
            OR state IN (SELECT value FROM json_each(:stored_states))
            OR (
                'retry_waiting' IN (SELECT value FROM json_each(:stored_states))
                AND state = 'queued' AND attempt > 0 AND failure_class IS NOT NULL
            )
            OR ('cleaned' IN (SELECT value FROM json_each(:stored_states)) AND cleaned_at IS NOT NULL)
        )
        AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
        AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
        AND (:key IS NULL OR idempotency_key = :key)
        AND (:tenant IS NULL OR tenant = :tenant)
        AND (:since IS NULL OR created_at >= :since)
        AND (:error IS NULL OR instr(lower(last_error), lower(:error)) > 0)
)
SELECT
    (SELECT json_group_object(shown, jobs) FROM (SELECT shown, count(*) AS jobs FROM matching GROUP BY shown)),
    (
        SELECT json_group_array(id)
        FROM (
            SELECT id
            FROM matching
            WHERE :states IS NULL OR shown IN (SELECT value FROM json_each(:states))
            ORDER BY id DESC
            LIMIT :limit + 1
        )
    );

-- name: deaths
-- The newest dead letters of one triage, without payload.
SELECT
    id, job_id, queue, kind, failure_class, fingerprint, triage, attempts, moved_at, triaged_at, triaged_by,
    triage_note, owner, substr(final_error, 1, 500)
FROM tenure_dead_letter
WHERE triage = :triage
ORDER BY moved_at DESC, id DESC
LIMIT :scan;

-- name: deaths_of_group
SELECT
    id, job_id, queue, kind, failure_class, fingerprint, triage, attempts, moved_at, triaged_at, triaged_by,
    triage_note, owner, substr(final_error, 1, 500)
FROM tenure_dead_letter INDEXED BY dead_letter_fingerprint_idx
WHERE fingerprint = :fingerprint AND triage = :triage
ORDER BY moved_at DESC, id DESC
LIMIT :scan;

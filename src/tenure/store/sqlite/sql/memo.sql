-- Memos. See tenure.store.memo.

-- name: found
-- A memo: its state, owner and value, whether its time is over, and whether its owner has ended or is gone.
SELECT m.state, m.job_id, m.value, coalesce(m.expires_at <= :now, 0),
    NOT EXISTS (SELECT 1 FROM tenure_job AS j WHERE j.id = m.job_id AND j.finished_at IS NULL)
FROM tenure_memo AS m
WHERE m.id = :id;

-- name: is_foreign
-- Whether this memo, or the tenant in whose name it is asked for, is another than the job's.
SELECT j.tenant IS NOT :tenant OR EXISTS (SELECT 1 FROM tenure_memo AS m WHERE m.id = :id AND m.tenant IS NOT j.tenant)
FROM tenure_job AS j
WHERE j.id = :job_id;

-- name: own
-- Make a job the owner of a memo that is to be worked out.
INSERT INTO tenure_memo (id, name, key, tenant, state, job_id, created_at)
VALUES (:id, :name, :key, :tenant, 'open', :job_id, :now)
ON CONFLICT (id) DO UPDATE
SET state = 'open',
    job_id = excluded.job_id,
    value = NULL,
    created_at = excluded.created_at,
    expires_at = NULL;

-- name: pass_on
-- The owner has ended without a value: the job that waits longest is the owner now.
UPDATE tenure_memo
SET job_id = :job_id,
    created_at = :now
WHERE id = :id AND state = 'open' AND tenant IS (SELECT tenant FROM tenure_job WHERE id = :job_id);

-- name: keep
UPDATE tenure_memo
SET state = 'done',
    value = :value,
    expires_at = :expires_at
WHERE id = :id AND job_id = :job_id AND state = 'open';

-- name: prune
-- Values whose time is over, and memos that were given up.
DELETE FROM tenure_memo
WHERE id IN (
    SELECT m.id
    FROM tenure_memo AS m
    WHERE m.expires_at <= :now
        OR m.state = 'open' AND m.created_at <= :given_up
            AND NOT EXISTS (SELECT 1 FROM tenure_job AS j WHERE j.id = m.job_id AND j.finished_at IS NULL)
    LIMIT :limit
);

-- name: page
-- Memos behind a place up to a name and key, by name, key and id. The last column: whether it is to be shown.
SELECT id, name, key, tenant, state, job_id, coalesce(length(CAST(value AS BLOB)), 0), coalesce(substr(value, 1, 200), ''), created_at,
    expires_at, coalesce(expires_at > :now, 1) AND (:tenant IS NULL OR coalesce(tenant = :tenant, 0))
FROM tenure_memo INDEXED BY memo_name_idx
WHERE (name, key, id) > (:after_name, :after_key, :after_id) AND (name, key) <= (:until_name, :until_key)
ORDER BY name, key, id
LIMIT :limit;

-- name: forget
-- These memos (a JSON array of ids) go, where they are of the tenant.
DELETE FROM tenure_memo
WHERE id IN (SELECT value FROM json_each(:ids)) AND (:tenant IS NULL OR tenant = :tenant)
RETURNING id, state;

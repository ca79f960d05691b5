-- Budgets: the statements of store/sqlite/budgets.py.

-- name: budget_put
INSERT INTO tenure_budget (id, scope, unit, per, cap, on_empty, window_from, window_until, created_at, updated_at)
VALUES (:id, :scope, :unit, :per, :cap, :on_empty, :window_from, :window_until, :now, :now)
ON CONFLICT (scope, unit, per) DO UPDATE
SET cap = excluded.cap,
    on_empty = excluded.on_empty,
    updated_at = excluded.updated_at;

-- name: budget_raise
-- The ids of the last 16 raises are kept, the newest first.
UPDATE tenure_budget
SET cap = cap + :amount,
    raises = (
        SELECT json_group_array(r.value)
        FROM (SELECT :raise_id AS value, -1 AS nth UNION ALL SELECT value, key FROM json_each(raises) ORDER BY nth LIMIT 16) AS r
    ),
    updated_at = :now
WHERE id = :id;

-- name: budget_turn
-- A new window begins.
UPDATE tenure_budget
SET used = 0,
    reserved = 0,
    window_from = :window_from,
    window_until = :window_until
WHERE id = :id;

-- name: budget_move
-- What is reserved and used changes, if the window is still the one in which it was reserved.
UPDATE tenure_budget
SET reserved = reserved + :reserved,
    used = used + :used
WHERE id = :id AND window_from IS :window_from
RETURNING scope, unit, per;

-- name: budget_remove
DELETE FROM tenure_budget WHERE id = :id;

-- name: budget_found
SELECT id, scope, unit, per, cap, used, reserved, on_empty, window_from, window_until, updated_at, raises
FROM tenure_budget
WHERE scope = :scope AND unit = coalesce(:unit, unit) AND per = coalesce(:per, per)
ORDER BY unit, per;

-- name: budgets_of
-- The budgets that concern a job.
SELECT b.id, b.scope, b.unit, b.per, b.cap, b.used, b.reserved, b.on_empty, b.window_from, b.window_until, b.updated_at, b.raises
FROM tenure_job AS j
CROSS JOIN tenure_budget AS b ON b.scope IN (
    'all', 'queue:' || j.queue, 'kind:' || j.kind, 'tenant:' || j.tenant, 'workflow:' || j.workflow_id, 'job:' || j.id
)
WHERE j.id = :job_id
ORDER BY b.scope, b.unit, b.per;

-- name: budgets_list
SELECT b.id, b.scope, b.unit, b.per, b.cap, b.used, b.reserved, b.on_empty, b.window_from, b.window_until, b.updated_at, b.raises, (
        SELECT json_array(count(*), min(s.created_at))
        FROM tenure_step AS s INDEXED BY step_awaits_idx
        CROSS JOIN tenure_job AS j ON j.id = s.job_id AND j.token = s.token AND j.state = 'waiting'
        WHERE s.awaits = 'budget:' || b.scope || ':' || b.unit || ':' || b.per AND s.state = 'open' AND s.awaits IS NOT NULL
    )
FROM tenure_budget AS b
WHERE (:scopes IS NULL OR b.scope IN (SELECT value FROM json_each(:scopes)))
    AND (:scope IS NULL OR (b.scope, b.unit, b.per) > (:scope, :unit, :per))
    AND (NOT :is_escalated OR b.on_empty = 'escalate' AND EXISTS (
        SELECT 1
        FROM tenure_step AS s INDEXED BY step_awaits_idx
        CROSS JOIN tenure_job AS j ON j.id = s.job_id AND j.token = s.token AND j.state = 'waiting'
        WHERE s.awaits = 'budget:' || b.scope || ':' || b.unit || ':' || b.per AND s.state = 'open' AND s.awaits IS NOT NULL
    ))
ORDER BY b.scope, b.unit, b.per
LIMIT :limit;

-- name: budgets_over
-- Budgets whose window has ended and that jobs wait for.
SELECT id, scope, unit, per, cap, used, reserved, on_empty, window_from, window_until, updated_at, raises
FROM tenure_budget AS b
WHERE b.window_until <= :now AND b.on_empty <> 'escalate' AND EXISTS (
    SELECT 1
    FROM tenure_step AS s INDEXED BY step_awaits_idx
    WHERE s.awaits = 'budget:' || b.scope || ':' || b.unit || ':' || b.per AND s.state = 'open' AND s.awaits IS NOT NULL
)
LIMIT :limit;

-- name: budget_is_awaited
SELECT 1 FROM tenure_step INDEXED BY step_awaits_idx WHERE awaits = :awaits AND state = 'open' AND awaits IS NOT NULL LIMIT 1;

-- name: spends_of
-- What a job has reserved: under one key, or, open ones, under all.
SELECT job_id, token, key, budget_id, state, reserved, used, window_from, is_rest
FROM tenure_spend
WHERE job_id = :job_id AND (key = :key OR state = 'held')
ORDER BY token, key, budget_id;

-- name: spends_settled
-- The rows of one reservation.
SELECT job_id, token, key, budget_id, state, reserved, used, window_from, is_rest
FROM tenure_spend
WHERE job_id = :job_id AND token = :token AND key = :key
ORDER BY budget_id;

-- name: units
-- The units of budgets (a JSON array of ids).
SELECT id, unit FROM tenure_budget WHERE id IN (SELECT value FROM json_each(:ids));

-- name: spend_put
INSERT INTO tenure_spend (job_id, token, key, budget_id, state, reserved, is_rest, window_from, at)
VALUES (:job_id, :token, :key, :budget_id, :state, :reserved, :is_rest, :window_from, :now);

-- name: spend_end
UPDATE tenure_spend
SET state = :state,
    used = :used
WHERE job_id = :job_id AND token = :token AND key = :key AND budget_id = :budget_id;

-- name: spend_drop
DELETE FROM tenure_spend WHERE job_id = :job_id AND token = :token AND key = :key AND budget_id = :budget_id;

-- name: spend_take_over
-- What was reserved while the job waited belongs to its new grant.
UPDATE tenure_spend
SET state = 'held',
    token = :token
WHERE job_id = :job_id AND key = :key AND state = 'granted';

-- name: spends_left
-- Reservations of grants that are over, and such as were made for a job that has ended instead of taking them over.
SELECT s.job_id, s.token, s.key, s.budget_id, s.state, s.reserved, s.used, s.window_from, s.is_rest
FROM tenure_spend AS s INDEXED BY spend_open_idx
LEFT JOIN tenure_job AS j ON j.id = s.job_id
WHERE s.state IN ('granted', 'held')
    AND NOT coalesce(CASE s.state WHEN 'held' THEN j.token = s.token AND j.state IN ('leased', 'running') ELSE j.finished_at IS NULL END, 0)
LIMIT :limit;

-- name: spends_forget
-- Of jobs (a JSON array of ids) that were cleaned: what is settled goes.
DELETE FROM tenure_spend WHERE job_id IN (SELECT value FROM json_each(:ids)) AND state IN ('done', 'broken');

-- name: budget_waiters
-- Who waits for a budget and asks for no more of its unit than there is room for; only steps count that the job's last suspend has named.
SELECT s.job_id, s.key, s.token, s.value
FROM tenure_step AS s INDEXED BY step_awaits_idx
CROSS JOIN tenure_job AS j ON j.id = s.job_id AND j.token = s.token AND j.state = 'waiting'
WHERE s.awaits = :awaits AND s.state = 'open' AND s.awaits IS NOT NULL
    AND (:room IS NULL OR coalesce(s.value -> '$.asked' ->> :unit, 0) <= :room)
ORDER BY s.created_at, s.job_id
LIMIT :limit;

-- name: budget_step
-- The open step by which a job is about to wait.
SELECT value FROM tenure_step WHERE job_id = :job_id AND key = :key AND state = 'open';

-- name: step_await_other
-- Another budget than the one that the job waits for refuses now.
UPDATE tenure_step
SET awaits = :awaits
WHERE job_id = :job_id AND key = :key AND state = 'open';

-- name: job_await_other
UPDATE tenure_job SET waiting_for = :awaits WHERE id = :job_id AND state = 'waiting';

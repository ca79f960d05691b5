-- Durable flow: steps, signals, and who is woken by them. One writer at a time: what makes a condition true looks at once who waits for
-- it, and a job that parks looks at once whether its conditions are met; nothing can come in between.

-- name: step_insert
-- The first record of a key; no row if there is one.
INSERT INTO tenure_step (job_id, key, ordinal, kind, state, token, value, error, awaits, due_at, created_at, ended_at)
SELECT :job_id, :key, (SELECT coalesce(max(ordinal), 0) + 1 FROM tenure_step WHERE job_id = :job_id), :kind, :state, :token, :value,
    :error, :awaits, :due_at, :now, :ended_at
WHERE true
ON CONFLICT (job_id, key) DO NOTHING;

-- name: step_move
-- An open step is closed, or waited for anew; an armed one is undone. Everything else stays as it was recorded.
UPDATE tenure_step
SET state = :state,
    token = :token,
    value = CASE WHEN :state = 'open' THEN value ELSE coalesce(:value, value) END,
    error = coalesce(:error, error),
    ended_at = :ended_at
WHERE job_id = :job_id AND key = :key
    AND (state = 'open' AND :state IN ('open', 'done', 'failed') OR state = 'armed' AND :state IN ('undone', 'failed'));

-- name: held_job
-- A job that is held under this token: its step_token, and whether it was asked to stop.
SELECT step_token, cancel_requested_at IS NOT NULL
FROM tenure_job
WHERE id = :job_id AND token = :token AND state IN ('leased', 'running') AND lease_until > :now;

-- name: note_steps
-- Which grant has recorded a new step.
UPDATE tenure_job SET step_token = :step_token WHERE id = :job_id;

-- name: steps_of
-- Steps by their keys (a JSON array).
SELECT job_id, key, ordinal, kind, state, token, value, error, awaits, due_at, created_at, ended_at
FROM tenure_step
WHERE job_id = :job_id AND key IN (SELECT value FROM json_each(:keys));

-- name: steps_list
-- The steps of a job in the order of their first record.
SELECT job_id, key, ordinal, kind, state, token, value, error, awaits, due_at, created_at, ended_at
FROM tenure_step
WHERE job_id = :job_id AND ordinal > :after
ORDER BY ordinal
LIMIT :limit;

-- name: steps_granted
-- What jobs (a JSON array of ids) have behind them, for their grants. A sleep whose time came while the job was queued is done.
SELECT job_id, key, ordinal, kind, CASE WHEN kind = 'sleep' AND state = 'open' AND due_at <= :now THEN 'done' ELSE state END, token, value, error, awaits, due_at, created_at, ended_at
FROM tenure_step
WHERE job_id IN (SELECT value FROM json_each(:ids))
ORDER BY job_id, ordinal;

-- name: is_past_deadline
-- Whether a job was granted with its deadline over, and is not being undone.
SELECT 1
FROM tenure_step
WHERE job_id = :job_id AND key = '$deadline' AND state <> 'open'
    AND NOT EXISTS (SELECT 1 FROM tenure_step WHERE job_id = :job_id AND key = '$undoing');

-- name: deadline_counts
-- The deadline ends every wait, whether or not the suspend names it.
UPDATE tenure_step SET token = :token WHERE job_id = :job_id AND key = '$deadline' AND state = 'open';

-- name: steps_parked
-- The open steps that this grant waits for.
SELECT key, awaits, due_at
FROM tenure_step
WHERE job_id = :job_id AND state = 'open' AND token = :token
ORDER BY ordinal;

-- name: step_close
-- A step's condition is met.
UPDATE tenure_step
SET state = :state,
    value = :value,
    ended_at = :now
WHERE job_id = :job_id AND key = :key AND state = 'open';

-- name: steps_close_due
-- Open steps of these jobs (a JSON array of ids) whose time has come: a sleep is done, anything else has failed by its timeout.
UPDATE tenure_step
SET state = CASE kind WHEN 'sleep' THEN 'done' ELSE 'failed' END,
    error = CASE kind WHEN 'sleep' THEN error ELSE 'timeout' END,
    ended_at = :now
WHERE job_id IN (SELECT value FROM json_each(:ids)) AND state = 'open' AND due_at <= :now;

-- name: waiters
-- Who waits for a condition: only steps count that the job's last suspend has named.
SELECT s.job_id, s.key
FROM tenure_step AS s INDEXED BY step_awaits_idx
CROSS JOIN tenure_job AS j ON j.id = s.job_id AND j.token = s.token AND j.state = 'waiting'
WHERE s.awaits = :awaits AND s.state = 'open' AND s.awaits IS NOT NULL
ORDER BY s.created_at, s.job_id
LIMIT :limit;

-- name: waits_of
-- The steps by which a job waits for a condition.
SELECT s.key
FROM tenure_step AS s
JOIN tenure_job AS j ON j.id = s.job_id AND j.token = s.token AND j.state = 'waiting'
WHERE s.job_id = :job_id AND s.awaits = :awaits AND s.state = 'open'
ORDER BY s.ordinal;

-- name: met_by_end
-- Conditions that the end of these jobs (a JSON array of ids) may meet: memos that they were to work out, and waits for the end itself.
SELECT 'memo:' || id
FROM tenure_memo INDEXED BY memo_owner_idx
WHERE state = 'open' AND job_id IN (SELECT value FROM json_each(:ids))
UNION
SELECT s.awaits
FROM json_each(:ids) AS ended
CROSS JOIN tenure_step AS s INDEXED BY step_awaits_idx ON s.awaits = 'job:' || ended.value AND s.state = 'open' AND s.awaits IS NOT NULL
ORDER BY 1;

-- name: is_open
-- Whether a job is there and has not ended.
SELECT 1 FROM tenure_job WHERE id = ? AND finished_at IS NULL;

-- name: watch_job
-- The end of this job tells those who wait for it, as that of every durable job does.
UPDATE tenure_job SET step_token = 0 WHERE id = ? AND finished_at IS NULL AND step_token IS NULL;

-- name: queue_waiting
-- Of these jobs (a JSON array of ids) those that wait are queued, with the place they had before.
UPDATE tenure_job
SET state = 'queued',
    waiting_for = NULL,
    run_at = coalesce(place_at, :now),
    is_due = coalesce(place_at, :now) <= :now,
    place_at = NULL,
    updated_at = :now
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'waiting'
RETURNING id, queue;

-- name: waiting_for
-- All that wait for one thing.
SELECT id FROM tenure_job INDEXED BY job_waiting_idx WHERE state = 'waiting' AND waiting_for = ?;

-- name: wake_held
-- A job that a worker holds is not woken, but its next suspend under this grant goes straight back to queued.
UPDATE tenure_job SET wake_token = token WHERE id IN (SELECT value FROM json_each(:ids)) AND state IN ('leased', 'running');

-- name: signal_job
-- The state of the job that a signal is meant for.
SELECT state FROM tenure_job WHERE id = ?;

-- name: signal_drop_old
-- A value that has expired makes room for a new one.
DELETE FROM tenure_signal WHERE key = :key AND scope = 'once' AND job_id IS :job_id AND expires_at <= :now;

-- name: signal_insert
-- No row if this id is there, or another value is first for a key of scope once.
INSERT INTO tenure_signal (id, key, scope, job_id, value, actor, created_at, expires_at)
VALUES (:id, :key, :scope, :job_id, :value, :actor, :now, :expires_at)
ON CONFLICT DO NOTHING;

-- name: signal_found
SELECT 1 FROM tenure_signal WHERE id = ?;

-- name: signal_oldest
-- What a wait for a key gets: the value of scope once, else the oldest of scope queue.
SELECT id, scope, value
FROM tenure_signal INDEXED BY signal_key_idx
WHERE key = :key AND taken_by IS NULL AND coalesce(job_id = :job_id, 1) AND expires_at > :now
ORDER BY scope = 'queue', created_at, id
LIMIT 1;

-- name: signal_take
UPDATE tenure_signal SET taken_by = :job_id WHERE id = :id;

-- name: event_put
INSERT INTO tenure_flow_event (what, awaits, group_id, detail) VALUES (:what, :awaits, :group_id, :detail);

-- name: event_take
-- The oldest event.
DELETE FROM tenure_flow_event WHERE seq = (SELECT min(seq) FROM tenure_flow_event) RETURNING what, awaits, group_id, detail;

-- name: event_any
SELECT 1 FROM tenure_flow_event LIMIT 1;

-- name: step_place
-- Of a job: its state, whether it has steps, and the order of one of them.
SELECT j.state, s.ordinal
FROM tenure_job AS j
LEFT JOIN tenure_step AS s ON s.job_id = j.id AND s.key = :key
WHERE j.id = :job_id;

-- name: steps_drop
-- Steps of a job by their order.
DELETE FROM tenure_step WHERE job_id = :job_id AND ordinal BETWEEN :first AND :last RETURNING ordinal, key;

-- name: has_undone
-- Whether something of a job was undone, or was to be.
SELECT 1 FROM tenure_step WHERE job_id = ? AND (state = 'undone' OR key = '$undoing') LIMIT 1;

-- name: is_undoing
-- Whether the end that a job is to have once it is undone is on record.
SELECT 1 FROM tenure_step WHERE job_id = ? AND key = '$undoing';

-- name: has_armed
-- Whether a job has something to undo, and has not begun to.
SELECT EXISTS (SELECT 1 FROM tenure_step WHERE job_id = :job_id AND kind = 'undo' AND state = 'armed')
    AND NOT EXISTS (SELECT 1 FROM tenure_step WHERE job_id = :job_id AND key = '$undoing');

-- name: queue_undo
-- A job that no worker holds is queued to undo what it has done, with attempts anew.
UPDATE tenure_job
SET state = 'queued',
    attempt = 0,
    crashes = 0,
    failure_class = coalesce(:mark, failure_class),
    waiting_for = NULL,
    run_at = coalesce(place_at, run_at),
    is_due = coalesce(place_at, run_at) <= :now,
    place_at = NULL,
    updated_at = :now
WHERE id = :job_id
RETURNING queue;

-- name: own_queue
-- The queue of a job whose profile lets it make work for no other.
SELECT j.queue
FROM tenure_job AS j
JOIN tenure_profile AS p ON p.name = j.profile
WHERE j.id = ? AND p.settings ->> 'own_queue_only' = 1;

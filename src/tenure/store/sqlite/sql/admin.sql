-- What operators, leaders and schedules ask for.

-- name: audit_write
-- What operators did.
INSERT INTO tenure_audit (at, actor, act, subject, reason, detail) VALUES (?, ?, ?, ?, ?, ?);

-- name: queue_create
-- A queue with its policy.
INSERT INTO tenure_queue (
    name, profile, priority_order, priority_default, aging_seconds, start_on_claim, max_attempts,
    backoff_shape, backoff_base_seconds, backoff_power, backoff_factor, backoff_cap_seconds, backoff_jitter,
    lease_seconds, lease_max_seconds, key_scope, key_space, key_required, key_window_seconds, key_conflict,
    revive, on_unknown_kind, forbidden_keys, concurrency, concurrency_per_key, retain_seconds, events, agent_events,
    created_at, updated_at
)
VALUES (
    :name, :profile, :priority_order, :priority_default, :aging_seconds, :start_on_claim, :max_attempts,
    :backoff_shape, :backoff_base_seconds, :backoff_power, :backoff_factor, :backoff_cap_seconds, :backoff_jitter,
    :lease_seconds, :lease_max_seconds, :key_scope, :key_space, :key_required, :key_window_seconds, :key_conflict,
    :revive, :on_unknown_kind, :forbidden_keys, :concurrency, :concurrency_per_key, :retain_seconds, :events, :agent_events,
    :now, :now
);

-- name: queue_set
-- Replace a queue's policy. Whether it is paused stays as it is.
UPDATE tenure_queue
SET profile = :profile,
    priority_order = :priority_order,
    priority_default = :priority_default,
    aging_seconds = :aging_seconds,
    start_on_claim = :start_on_claim,
    max_attempts = :max_attempts,
    backoff_shape = :backoff_shape,
    backoff_base_seconds = :backoff_base_seconds,
    backoff_power = :backoff_power,
    backoff_factor = :backoff_factor,
    backoff_cap_seconds = :backoff_cap_seconds,
    backoff_jitter = :backoff_jitter,
    lease_seconds = :lease_seconds,
    lease_max_seconds = :lease_max_seconds,
    key_scope = :key_scope,
    key_space = :key_space,
    key_required = :key_required,
    key_window_seconds = :key_window_seconds,
    key_conflict = :key_conflict,
    revive = :revive,
    on_unknown_kind = :on_unknown_kind,
    forbidden_keys = :forbidden_keys,
    concurrency = :concurrency,
    concurrency_per_key = :concurrency_per_key,
    retain_seconds = :retain_seconds,
    events = :events,
    agent_events = :agent_events,
    updated_at = :now
WHERE name = :name;

-- name: queue_found
-- Whether a queue of this name is there.
SELECT 1 FROM tenure_queue WHERE name = ?;

-- name: queue_live
-- Whether a queue has jobs that have not ended.
SELECT EXISTS (
    SELECT 1
    FROM tenure_job AS j
    WHERE j.queue = ? AND j.state IN ('queued', 'leased', 'running', 'waiting')
);

-- name: queue_used
-- Whether a queue has any job, live or ended.
SELECT EXISTS (
    SELECT 1
    FROM tenure_job AS j
    WHERE j.queue = ?
);

-- name: queue_remove
-- Remove a queue's row.
DELETE FROM tenure_queue
WHERE name = ?;

-- name: queue_names
-- Every queue's name.
SELECT name FROM tenure_queue ORDER BY name;

-- name: queue_profile
-- The profile of a queue.
SELECT profile FROM tenure_queue WHERE name = ?;

-- name: queue_pause
-- Pause or resume a queue. No row changed: it was so already.
UPDATE tenure_queue
SET paused_at = CASE WHEN :paused THEN :now END,
    paused_by = CASE WHEN :paused THEN :actor END,
    updated_at = :now
WHERE name = :name AND (paused_at IS NOT NULL) <> :paused;

-- name: gate_set
-- Open or close a gate.
INSERT INTO tenure_gate (name, is_open, actor, updated_at)
VALUES (:name, :is_open, :actor, :now)
ON CONFLICT (name) DO UPDATE
SET is_open = excluded.is_open,
    actor = excluded.actor,
    updated_at = excluded.updated_at;

-- name: gate_found
-- Whether a gate was ever touched.
SELECT 1 FROM tenure_gate WHERE name = ?;

-- name: edit_look
-- A job as EditJob needs it.
SELECT token, updated_at, created_at, state, EXISTS (SELECT 1 FROM tenure_step AS s WHERE s.job_id = tenure_job.id) AS has_steps, queue, kind,
    idempotency_key, payload, priority, rank, payload_hash, forbidden_keys
FROM tenure_job
WHERE id = ?;

-- name: edit
-- Invariant: updated_at rises with every edit, so that a version is never shown by two of them.
UPDATE tenure_job
SET payload = :payload,
    payload_hash = :payload_hash,
    forbidden_keys = :forbidden_keys,
    priority = :priority,
    rank = :rank,
    updated_at = max(:now, updated_at + 1)
WHERE id = :job_id;

-- name: lease_acquire
-- Take a named lease that is free or has run out, or extend one's own.
-- Invariant: one row decides, so there are never two owners in a term; the term rises exactly when the owner changes.
INSERT INTO tenure_lease (name, owner, term, acquired_at, until)
VALUES (:name, :owner, 1, :now, :until)
ON CONFLICT (name) DO UPDATE
SET term = term + (owner <> excluded.owner),
    acquired_at = CASE WHEN owner = excluded.owner THEN acquired_at ELSE excluded.acquired_at END,
    owner = excluded.owner,
    until = excluded.until
WHERE until <= :now OR owner = excluded.owner;

-- name: lease_read
-- The holder of a named lease.
SELECT owner, term, until FROM tenure_lease WHERE name = ?;

-- name: lease_release
-- Give a named lease back, if it is still one's own in that term; a repeat finds it given back, and is answered alike. The row stays,
-- so that the term goes on rising.
UPDATE tenure_lease
SET until = min(until, :now)
WHERE name = :name AND owner = :owner AND term = :term;

-- name: triage_before
-- The job of a dead letter, and what was decided about it so far.
SELECT job_id, triage FROM tenure_dead_letter WHERE id = ?;

-- name: triage
-- What was decided about a dead letter, by whom and when.
UPDATE tenure_dead_letter
SET triage = :triage,
    triage_note = :note,
    triaged_at = :now,
    triaged_by = :actor,
    owner = coalesce(:owner, owner)
WHERE id = :id;

-- name: cancel
-- A job that no worker holds ends at once; one that a worker holds is asked to stop, and its worker settles it.
-- After this no job goes on: a queued one has left the queue, and every later end of a held one becomes `cancelled`. :mark is the class of
-- jobs that are not cancelled for their own sake; a held one keeps it until its end.
UPDATE tenure_job
SET cancel_requested_at = coalesce(cancel_requested_at, :now),
    state = CASE WHEN state IN ('leased', 'running') THEN state ELSE 'cancelled' END,
    finished_at = CASE WHEN state IN ('leased', 'running') THEN NULL ELSE :now END,
    failure_class = CASE
        WHEN state NOT IN ('leased', 'running') THEN coalesce(:mark, 'cancelled')
        WHEN cancel_requested_at IS NULL THEN coalesce(:mark, failure_class)
        ELSE failure_class
    END,
    waiting_for = NULL,
    place_at = CASE WHEN state IN ('leased', 'running') THEN place_at END,
    dedup_slot = CASE
        WHEN state NOT IN ('leased', 'running') AND substr(dedup_slot, 1, 1) = 'a' THEN NULL
        ELSE dedup_slot
    END,
    updated_at = :now
WHERE id = :job_id AND state IN ('queued', 'waiting', 'leased', 'running')
RETURNING state, group_id, workflow_id;

-- name: job_state
-- Where a job stands; its token, whether it has steps, whether it was asked to stop, and when it last changed.
SELECT state, token, step_token, cancel_requested_at, updated_at FROM tenure_job WHERE id = ?;

-- name: revive_look
-- Whether a job may be revived, and the slot it would take again.
SELECT j.token,
    j.state,
    CASE
        WHEN j.state NOT IN ('failed', 'dead', 'cancelled') THEN 'it is ' || j.state
        WHEN j.cleaned_at IS NOT NULL THEN 'its payload was pruned'
        WHEN q.revive <> 'revive' THEN 'its queue allows only a clone'
        WHEN holder.id IS NOT NULL THEN 'another job holds its key'
    END AS why,
    j.slot,
    j.updated_at
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

-- name: revive
-- An ended job starts over, due at once. The token stays: it only ever rises, by the next claim.
UPDATE tenure_job
SET state = 'queued',
    attempt = 0,
    crashes = 0,
    suspicion = 0,
    run_at = :now,
    is_due = 1,
    dedup_slot = :slot,
    cancel_requested_at = NULL,
    finished_at = NULL,
    claimed_at = NULL,
    started_at = NULL,
    failure_class = NULL,
    updated_at = :now
WHERE id = :job_id AND state IN ('failed', 'dead', 'cancelled')
RETURNING queue, group_id, step_token, workflow_id;

-- name: revive_letters
-- The dead letters of a revived job have been dealt with.
UPDATE tenure_dead_letter
SET triage = 'manual_replay',
    triage_note = :reason,
    triaged_at = :now,
    triaged_by = :actor
WHERE job_id = :job_id AND triage = 'pending';

-- name: clone_look
-- Whether a job has ended and still has its payload; and the slot that its clone takes: the key's where the scope is active, because a
-- slot that outlives its job stays with the original.
SELECT j.state, j.payload IS NULL, j.queue,
    CASE
        WHEN j.idempotency_key IS NOT NULL AND q.key_scope = 'active' THEN
            'a|' || q.profile || char(31)
            || CASE q.key_space WHEN 'kind' THEN length(j.kind) || char(31) || j.kind ELSE '' END || char(31) || j.idempotency_key
    END AS slot
FROM tenure_job AS j
JOIN tenure_queue AS q ON q.name = j.queue
WHERE j.id = ?;

-- name: clone
-- A fresh job like one that ended, its child, under the policy that the queue has now.
INSERT INTO tenure_job (
    id, kind, payload, queue, profile, priority, rank, max_attempts, run_at, is_due, created_at, updated_at,
    idempotency_key, dedup_slot, payload_hash, forbidden_keys,
    backoff, affinity_key, concurrency_key, limiter, source_ref, target_ref, payload_ref, actor, created_by_user_id,
    requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, artifacts_path
)
SELECT :new_id, j.kind, j.payload, j.queue, q.profile, j.priority,
    CASE q.priority_order WHEN 'high' THEN -1 ELSE 1 END * j.priority
        * CASE WHEN q.aging_seconds IS NULL THEN 1 ELSE CAST(1000000 * q.aging_seconds AS INTEGER) END
        + CASE WHEN q.aging_seconds IS NULL THEN 0 ELSE :now END,
    j.max_attempts, :now, 1, :now, :now, j.idempotency_key, :slot, j.payload_hash, q.forbidden_keys,
    j.backoff, j.affinity_key, j.concurrency_key, j.limiter, j.source_ref, j.target_ref, j.payload_ref, :actor, j.created_by_user_id,
    j.requested_by_user_id, j.tenant, j.workflow_id, j.id, j.run_id, j.trace, NULL
FROM tenure_job AS j
JOIN tenure_queue AS q ON q.name = j.queue
WHERE j.id = :job_id
ON CONFLICT DO NOTHING;

-- name: clone_holder
-- Who holds the slot that a clone would have taken; the clone itself if it is there already.
SELECT id
FROM tenure_job
WHERE id = :new_id OR dedup_slot = :slot
ORDER BY id = :new_id DESC
LIMIT 1;

-- name: schedules
-- All by name, or those asked for (a JSON array).
SELECT name, spec, last_tick, paused_at, paused_by, created_at, updated_at
FROM tenure_schedule
WHERE (:names IS NULL OR name IN (SELECT value FROM json_each(:names)))
ORDER BY name;

-- name: schedule_set
-- Declare a schedule. A new one starts now; a known one keeps its last tick and its pause.
-- No row changed: it stands as declared.
INSERT INTO tenure_schedule (name, spec, last_tick, created_at, updated_at)
VALUES (:name, :spec, :now, :now, :now)
ON CONFLICT (name) DO UPDATE
SET spec = excluded.spec,
    updated_at = excluded.updated_at
WHERE spec <> excluded.spec;

-- name: schedule_tick
-- Deal with all ticks up to one. Invariant: the row decides; a second leader finds another last tick.
UPDATE tenure_schedule
SET last_tick = :tick,
    updated_at = :now
WHERE name = :name AND last_tick = :after AND paused_at IS NULL;

-- name: schedule_pause
-- Pause or resume. Resuming starts from now: what would have run meanwhile was not wanted.
UPDATE tenure_schedule
SET paused_at = CASE WHEN :paused THEN :now END,
    paused_by = CASE WHEN :paused THEN :actor END,
    last_tick = CASE WHEN :paused THEN last_tick ELSE :now END,
    updated_at = :now
WHERE name = :name AND (paused_at IS NOT NULL) <> :paused;

-- name: schedule_remove
-- Forget a schedule. Jobs it made stay.
DELETE FROM tenure_schedule WHERE name = ?;

-- Reads of people and their programs: lists with limits, and looks at the whole database.

-- name: jobs_by_id
-- Jobs by id (a JSON array). The columns stand in the order of Job's fields.
SELECT
    id, queue, kind, state, priority, payload, run_at, attempt, max_attempts, crashes, token, created_at,
    updated_at, payload_hash, lease_owner, lease_until, idempotency_key, affinity_key, concurrency_key,
    cancel_requested_at, waiting_for, source_ref, target_ref, payload_ref, actor, created_by_user_id,
    requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, backoff, progress, result,
    result_summary, artifacts_path, last_error, failure_class, claimed_at, started_at, finished_at,
    cleaned_at, suspicion, group_id, step_token, limiter
FROM tenure_job
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: jobs_list
-- The ids of jobs that match, newest first; filters are JSON arrays or values, NULL for all.
SELECT id
FROM tenure_job
WHERE id < coalesce(:after, 'g')
    AND (:workflow_id IS NULL OR workflow_id = :workflow_id)
    AND (:parent_id IS NULL OR parent_id = :parent_id)
    AND (
        :states IS NULL
        OR state IN (SELECT value FROM json_each(:states))
        OR (
            'retry_waiting' IN (SELECT value FROM json_each(:states))
            AND state = 'queued' AND attempt > 0 AND failure_class IS NOT NULL
        )
        OR ('cleaned' IN (SELECT value FROM json_each(:states)) AND cleaned_at IS NOT NULL)
    )
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
    AND (:key IS NULL OR idempotency_key = :key)
    AND (:profile IS NULL OR profile = :profile)
    AND (:worker IS NULL OR lease_owner = :worker)
ORDER BY id DESC
LIMIT :limit;

-- name: jobs_list_held
-- The same for what one worker holds.
SELECT id
FROM tenure_job INDEXED BY job_lease_idx
WHERE state IN ('leased', 'running') AND lease_owner = :worker
    AND (:after IS NULL OR id < :after)
    AND (:workflow_id IS NULL OR workflow_id = :workflow_id)
    AND (:parent_id IS NULL OR parent_id = :parent_id)
    AND (
        :states IS NULL
        OR state IN (SELECT value FROM json_each(:states))
        OR (
            'retry_waiting' IN (SELECT value FROM json_each(:states))
            AND state = 'queued' AND attempt > 0 AND failure_class IS NOT NULL
        )
        OR ('cleaned' IN (SELECT value FROM json_each(:states)) AND cleaned_at IS NOT NULL)
    )
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
    AND (:key IS NULL OR idempotency_key = :key)
    AND (:profile IS NULL OR profile = :profile)
    AND (:worker IS NULL OR lease_owner = :worker)
ORDER BY id DESC
LIMIT :limit;

-- name: jobs_list_parent
-- The same for the children of one job, by their index.
SELECT id
FROM tenure_job INDEXED BY job_parent_idx
WHERE parent_id = :parent_id
    AND (:after IS NULL OR id < :after)
    AND (:workflow_id IS NULL OR workflow_id = :workflow_id)
    AND (
        :states IS NULL
        OR state IN (SELECT value FROM json_each(:states))
        OR (
            'retry_waiting' IN (SELECT value FROM json_each(:states))
            AND state = 'queued' AND attempt > 0 AND failure_class IS NOT NULL
        )
        OR ('cleaned' IN (SELECT value FROM json_each(:states)) AND cleaned_at IS NOT NULL)
    )
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
    AND (:key IS NULL OR idempotency_key = :key)
    AND (:profile IS NULL OR profile = :profile)
    AND (:worker IS NULL OR lease_owner = :worker)
ORDER BY id DESC
LIMIT :limit;

-- name: jobs_list_workflow
-- The same for one workflow, by its index.
SELECT id
FROM tenure_job INDEXED BY job_workflow_idx
WHERE workflow_id = :workflow_id
    AND (:after IS NULL OR id < :after)
    AND (:parent_id IS NULL OR parent_id = :parent_id)
    AND (
        :states IS NULL
        OR state IN (SELECT value FROM json_each(:states))
        OR (
            'retry_waiting' IN (SELECT value FROM json_each(:states))
            AND state = 'queued' AND attempt > 0 AND failure_class IS NOT NULL
        )
        OR ('cleaned' IN (SELECT value FROM json_each(:states)) AND cleaned_at IS NOT NULL)
    )
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
    AND (:key IS NULL OR idempotency_key = :key)
    AND (:profile IS NULL OR profile = :profile)
    AND (:worker IS NULL OR lease_owner = :worker)
ORDER BY id DESC
LIMIT :limit;

-- name: count
-- Jobs by queue, kind and state.
SELECT queue, kind, state, count(*), min(created_at)
FROM tenure_job
WHERE (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
GROUP BY queue, kind, state
ORDER BY queue, kind, state;

-- name: count_live
-- The same of jobs that are still to do.
SELECT queue, kind, state, count(*), min(created_at)
FROM tenure_live_job
WHERE (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
    AND state IN (SELECT value FROM json_each(:states))
GROUP BY queue, kind, state
ORDER BY queue, kind, state;

-- name: attempts
-- The attempts of a job that did not end well, oldest first.
SELECT job_id, token, attempt, worker, claimed_at, ended_at, outcome, failure_class, error, fingerprint, run_at
FROM tenure_attempt
WHERE job_id = ?
ORDER BY token;

-- name: dead_letters
-- Dead letters that match, newest first. Columns in the order of DeadLetter's fields.
SELECT
    id, job_id, queue, kind, state, payload, attempts, crashes, failure_class, final_error, fingerprint,
    moved_at, moved_by, triage, triage_note, triaged_at, triaged_by, owner, idempotency_key, actor, run_id,
    workflow_id, source_ref, target_ref, payload_ref
FROM tenure_dead_letter
WHERE (:triage IS NULL OR triage IN (SELECT value FROM json_each(:triage)))
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
    AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
    AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
    AND (:job_id IS NULL OR job_id = :job_id)
    AND (:after_at IS NULL OR (moved_at, id) < (:after_at, :after_id))
ORDER BY moved_at DESC, id DESC
LIMIT :limit;

-- name: dead_letter_groups
-- Deaths that look alike, with the newest of each as a sample.
SELECT g.fingerprint, g.kind, g.queue, g.letters, g.pending, g.first_at, g.last_at, d.final_error, d.job_id
FROM (
    SELECT fingerprint, kind, queue,
        count(*) AS letters,
        sum(triage = 'pending') AS pending,
        min(moved_at) AS first_at,
        max(moved_at) AS last_at
    FROM tenure_dead_letter
    WHERE (:triage IS NULL OR triage IN (SELECT value FROM json_each(:triage)))
    GROUP BY fingerprint, kind, queue
    ORDER BY letters DESC, last_at DESC
    LIMIT :limit
) AS g
JOIN tenure_dead_letter AS d ON d.id = (
    SELECT s.id
    FROM tenure_dead_letter AS s
    WHERE s.fingerprint = g.fingerprint AND s.kind = g.kind AND s.queue = g.queue
        AND (:triage IS NULL OR s.triage IN (SELECT value FROM json_each(:triage)))
    ORDER BY s.moved_at DESC, s.job_id DESC, s.id DESC
    LIMIT 1
)
ORDER BY g.letters DESC, g.last_at DESC;

-- name: queues
-- Every queue by name, or those asked for (a JSON array).
SELECT
    name, profile, priority_order, priority_default, aging_seconds, start_on_claim, max_attempts,
    backoff_shape, backoff_base_seconds, backoff_power, backoff_factor, backoff_cap_seconds, backoff_jitter,
    lease_seconds, lease_max_seconds, key_scope, key_space, key_required, key_window_seconds, key_conflict,
    revive, on_unknown_kind, forbidden_keys, concurrency, concurrency_per_key, retain_seconds, events, agent_events, paused_at,
    paused_by, created_at, updated_at
FROM tenure_queue
WHERE (:names IS NULL OR name IN (SELECT value FROM json_each(:names)))
ORDER BY name;

-- name: gates
-- The four that are for everybody, and every other that has a row. No row means open.
SELECT name, is_open, updated_at, actor FROM tenure_gate
UNION ALL
SELECT g.value, 1, NULL, NULL
FROM json_each('["master", "worker", "notify", "heartbeat"]') AS g
WHERE g.value NOT IN (SELECT name FROM tenure_gate)
ORDER BY 1;

-- name: workers
-- Every worker that has a row, most recently seen first, with what it holds and whether it leads.
SELECT w.id, w.hostname, w.pid, w.queues, w.kinds, w.concurrency, w.version, w.executor_kind, w.status, w.current_job_id, w.info,
    w.started_at, w.last_seen_at, w.ticks,
    coalesce(held.jobs, 0),
    lead.until,
    lead.until IS NOT NULL
FROM tenure_worker AS w
LEFT JOIN (
    SELECT lease_owner, count(*) AS jobs
    FROM tenure_job INDEXED BY job_lease_idx
    WHERE state IN ('leased', 'running')
    GROUP BY lease_owner
) AS held ON held.lease_owner = w.id
LEFT JOIN tenure_lease AS lead ON lead.name = 'leader' AND lead.owner = w.id AND lead.until > :now
ORDER BY w.last_seen_at DESC, w.id;

-- name: events
-- Events above a number and up to another, in order.
SELECT seq, at, kind, job_id, queue, data
FROM tenure_event
WHERE seq > :after
    AND seq <= :until
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
ORDER BY seq
LIMIT :limit;

-- name: events_of_job
-- The same for one job, by its index.
SELECT seq, at, kind, job_id, queue, data
FROM tenure_event INDEXED BY event_job_idx
WHERE job_id = :job_id
    AND seq > :after
    AND seq <= :until
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
ORDER BY seq
LIMIT :limit;

-- name: newest_event
-- The highest event number.
SELECT coalesce(max(seq), 0) FROM tenure_event;

-- name: audit
-- What was done, newest first.
SELECT seq, at, actor, act, subject, reason, detail
FROM tenure_audit
WHERE seq < coalesce(:before, 9223372036854775807)
ORDER BY seq DESC
LIMIT :limit;

-- name: audit_of
-- The same of one subject.
SELECT seq, at, actor, act, subject, reason, detail
FROM tenure_audit INDEXED BY audit_subject_idx
WHERE subject = :subject AND seq < coalesce(:before, 9223372036854775807)
ORDER BY seq DESC
LIMIT :limit;

-- name: effects
-- Effects of a job, or of all in some states, by job and place.
SELECT job_id, step, name, state, token, key, args, result, error, intended_at, updated_at
FROM tenure_effect
WHERE (:job_id IS NULL OR job_id = :job_id)
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    AND (:after_job IS NULL OR (job_id, step, name) > (:after_job, :after_step, :after_name))
ORDER BY job_id, step, name
LIMIT :limit;

-- name: summary_backlog
-- What waits and what is held in each queue.
SELECT queue,
    coalesce(sum(state = 'queued' AND run_at <= :now), 0) AS due,
    coalesce(sum(state = 'queued' AND run_at > :now), 0) AS delayed,
    coalesce(sum(state = 'queued' AND attempt > 0 AND failure_class IS NOT NULL), 0) AS retrying,
    coalesce(sum(state IN ('leased', 'running')), 0) AS held,
    coalesce(sum(state = 'waiting'), 0) AS waiting,
    min(CASE WHEN state = 'queued' AND run_at <= :now THEN run_at END) AS oldest_due_at
FROM tenure_live_job
WHERE (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
GROUP BY queue
ORDER BY queue;

-- name: summary_since
-- When the newest job ended that is one too many for a look at the newest :scan of the window.
SELECT finished_at
FROM tenure_job INDEXED BY job_finished_idx
WHERE finished_at IS NOT NULL
    AND cleaned_at IS NULL
    AND finished_at > :since
ORDER BY finished_at DESC
LIMIT 1 OFFSET :scan;

-- name: summary_ran
-- What ended within the window, by queue and kind, and how long the successes ran and had waited.
-- A percentile is the smallest value that at least that share of the values does not exceed.
WITH ended AS (
    SELECT queue, kind, state, finished_at,
        finished_at - claimed_at AS run,
        max(claimed_at - run_at, 0) AS wait
    FROM tenure_job INDEXED BY job_finished_idx
    WHERE finished_at IS NOT NULL
        AND cleaned_at IS NULL
        AND finished_at > :since
        AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
),
ranked AS (
    SELECT queue, kind, run, wait,
        row_number() OVER (PARTITION BY queue, kind ORDER BY run) AS by_run,
        row_number() OVER (PARTITION BY queue, kind ORDER BY wait) AS by_wait,
        count(*) OVER (PARTITION BY queue, kind) AS jobs
    FROM ended
    WHERE state = 'succeeded'
),
took AS (
    SELECT queue, kind,
        avg(run) AS average,
        max(CASE WHEN by_run = (jobs * 50 + 99) / 100 THEN run END) AS run_p50,
        max(CASE WHEN by_run = (jobs * 95 + 99) / 100 THEN run END) AS run_p95,
        max(run) AS run_max,
        max(CASE WHEN by_wait = (jobs * 50 + 99) / 100 THEN wait END) AS wait_p50
    FROM ranked
    GROUP BY queue, kind
)
SELECT e.queue, e.kind,
    sum(e.state = 'succeeded'), sum(e.state = 'failed'), sum(e.state = 'dead'), sum(e.state = 'cancelled'),
    t.average / 1e6, t.run_p50 / 1e6, t.run_p95 / 1e6, t.run_max / 1e6, t.wait_p50 / 1e6,
    max(e.finished_at)
FROM ended AS e
LEFT JOIN took AS t ON t.queue = e.queue AND t.kind = e.kind
GROUP BY e.queue, e.kind
ORDER BY e.queue, e.kind;

-- name: summary_repeated
-- Keys of one kind that several jobs carry, among those still to do and those that ended within the window.
SELECT queue, kind, idempotency_key, count(*) AS jobs, sum(is_active), max(id)
FROM (
    SELECT id, queue, kind, idempotency_key, 1 AS is_active
    FROM tenure_live_job
    UNION ALL
    SELECT id, queue, kind, idempotency_key, 0
    FROM tenure_job INDEXED BY job_finished_idx
    WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND finished_at > :since
)
WHERE idempotency_key IS NOT NULL
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
GROUP BY queue, kind, idempotency_key
HAVING count(*) > 1
ORDER BY jobs DESC, queue, kind, idempotency_key
LIMIT :limit;

-- name: summary_stuck
-- Held jobs whose lease ran out and that were not taken back, the longest ago first; with their number.
SELECT count(*) OVER (), id, queue, kind, state, lease_owner, attempt, lease_until
FROM tenure_job INDEXED BY job_lease_idx
WHERE state IN ('leased', 'running')
    AND lease_until <= :now
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
ORDER BY lease_until, id
LIMIT :limit;

-- name: standing
-- What stands between one job and its claim.
SELECT
    CASE WHEN j.state <> 'queued' THEN 0 ELSE (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM tenure_job AS a INDEXED BY job_claim_idx
            WHERE a.queue = j.queue AND a.limiter IS j.limiter AND a.state = 'queued' AND a.is_due = 1 AND a.suspicion < 2
                AND (a.rank, a.run_at, a.id) < (j.rank, j.run_at, j.id)
            LIMIT :cap
        )
    ) END,
    (
        SELECT count(*)
        FROM tenure_job AS h INDEXED BY job_lease_idx
        WHERE h.state IN ('leased', 'running') AND h.queue = j.queue
    ),
    (
        SELECT count(*)
        FROM tenure_job AS h INDEXED BY job_lease_idx
        WHERE h.state IN ('leased', 'running') AND h.queue = j.queue AND h.concurrency_key = j.concurrency_key
    ),
    (SELECT e.kind FROM tenure_event AS e INDEXED BY event_job_idx WHERE e.job_id = j.id ORDER BY e.seq DESC LIMIT 1)
FROM tenure_job AS j
WHERE j.id = :job_id;

-- name: inspect
-- What the file says about itself.
SELECT sqlite_version(),
    (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size),
    (SELECT freelist_count FROM pragma_freelist_count) * (SELECT page_size FROM pragma_page_size),
    (SELECT journal_mode FROM pragma_journal_mode),
    (SELECT synchronous FROM pragma_synchronous),
    (SELECT file FROM pragma_database_list WHERE name = 'main');

-- name: inspect_jobs
-- When the newest job was made, and the highest event number.
SELECT (SELECT created_at FROM tenure_job WHERE id = (SELECT max(id) FROM tenure_job)), coalesce((SELECT max(seq) FROM tenure_event), 0);

-- name: last_move
SELECT role, other, phase FROM tenure_move ORDER BY started_at DESC, id DESC LIMIT 1;

-- name: prunable
-- What a prune without a limit would remove. What it cleans may be old enough to go at once.
WITH clean AS (
    SELECT j.id, j.finished_at
    FROM tenure_job AS j INDEXED BY job_finished_idx
    CROSS JOIN tenure_queue AS q ON q.name = j.queue
    WHERE j.finished_at IS NOT NULL
        AND j.cleaned_at IS NULL
        AND j.finished_at <= :now - 1000000 * coalesce(:older_than_seconds, q.retain_seconds)
        AND NOT EXISTS (SELECT 1 FROM tenure_dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
),
gone AS (
    SELECT id FROM clean WHERE finished_at <= :now - 1000000 * :delete_after_seconds
    UNION ALL
    SELECT j.id
    FROM tenure_job AS j INDEXED BY job_cleaned_idx
    WHERE j.cleaned_at IS NOT NULL
        AND j.finished_at <= :now - 1000000 * :delete_after_seconds
        AND NOT EXISTS (SELECT 1 FROM tenure_dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
)
SELECT (SELECT count(*) FROM clean),
    (SELECT count(*) FROM gone),
    (SELECT count(*) FROM tenure_event WHERE job_id IN (SELECT id FROM gone)),
    (SELECT count(*) FROM tenure_worker WHERE last_seen_at <= :now - 1000000 * :worker_seconds),
    (SELECT count(*) FROM tenure_metric WHERE minute <= :now - 1000000 * :metric_seconds),
    (SELECT count(*) FROM tenure_memory WHERE expires_at <= :now);

-- name: prune_lag
-- How many microseconds ago the oldest of the jobs that ended first should have lost its payload; NULL if none should.
SELECT max(CAST(:now - ended.finished_at - 1000000 * q.retain_seconds AS INTEGER))
FROM (
    SELECT id, queue, finished_at
    FROM tenure_job INDEXED BY job_finished_idx
    WHERE finished_at IS NOT NULL AND cleaned_at IS NULL
    ORDER BY finished_at
    LIMIT :scan
) AS ended
JOIN tenure_queue AS q ON q.name = ended.queue
WHERE ended.finished_at <= :now - 1000000 * q.retain_seconds
    AND NOT EXISTS (SELECT 1 FROM tenure_dead_letter AS d WHERE d.job_id = ended.id AND d.triage <> 'closed');

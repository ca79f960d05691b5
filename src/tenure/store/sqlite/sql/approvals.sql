-- Approvals: what durable jobs ask of people. store/approvals.py is the specification.

-- name: current
-- What a step asks now, or had decided last.
SELECT id, state, args_hash FROM tenure_approval WHERE job_id = :job_id AND step_key = :key AND state <> 'void';

-- name: insert
-- asked_by is the worker that holds the job.
INSERT INTO tenure_approval (id, job_id, step_key, token, name, args, args_hash, text, need, asked_of, asked_by, on_expiry, created_at, expires_at)
SELECT :id, :job_id, :key, :token, :name, :args, :args_hash, :text, :need, :asked_of, coalesce(lease_owner, ''), :on_expiry, :now, :expires_at
FROM tenure_job
WHERE id = :job_id;

-- name: step_open
-- The step waits for this approval; one that was closed is opened again.
INSERT INTO tenure_step (job_id, key, ordinal, kind, state, token, value, awaits, created_at)
SELECT :job_id, :key, (SELECT coalesce(max(ordinal), 0) + 1 FROM tenure_step WHERE job_id = :job_id), 'approval', 'open', :token, :value,
    :awaits, :now
WHERE true
ON CONFLICT (job_id, key) DO UPDATE
SET kind = 'approval',
    state = 'open',
    token = excluded.token,
    value = excluded.value,
    error = NULL,
    awaits = excluded.awaits,
    due_at = NULL,
    ended_at = NULL;

-- name: step_again
-- The same question: an open step is waited for by this grant.
UPDATE tenure_step SET token = :token WHERE job_id = :job_id AND key = :key AND state = 'open';

-- name: step_void
-- The arguments have changed too often.
UPDATE tenure_step
SET state = 'failed',
    error = 'void',
    token = :token,
    ended_at = :now
WHERE job_id = :job_id AND key = :key;

-- name: void_one
UPDATE tenure_approval SET state = 'void', why = :why, decided_at = coalesce(decided_at, :now) WHERE id = :id;

-- name: count_changed
-- How often the arguments of a step have changed.
SELECT count(*) FROM tenure_approval WHERE job_id = :job_id AND step_key = :key AND state = 'void' AND why = 'changed';

-- name: void_of_jobs
-- Jobs (a JSON array of ids) have ended: what they still ask is void.
UPDATE tenure_approval
SET state = 'void',
    why = 'ended',
    decided_at = :now
WHERE job_id IN (SELECT value FROM json_each(:ids)) AND state = 'pending';

-- name: void_of_steps
-- Steps (a JSON array of keys) are forgotten, and what they asked with them. Of what was used, used_at goes on telling.
UPDATE tenure_approval
SET state = 'void',
    why = 'forgotten',
    decided_at = coalesce(decided_at, :now)
WHERE job_id = :job_id AND step_key IN (SELECT value FROM json_each(:keys)) AND state <> 'void';

-- name: end_of
-- How an approval ended, for the step that waits for it. by: those who approved, or who denied.
SELECT a.state, a.args, a.args_hash, a.why,
    (SELECT json_group_array(o.voter) FROM (
        SELECT v.voter FROM tenure_vote AS v
        WHERE v.approval_id = a.id AND v.choice = CASE WHEN a.state = 'denied' THEN 'deny' ELSE 'approve' END
        ORDER BY v.at, v.person) AS o),
    (SELECT v.note FROM tenure_vote AS v
     WHERE v.approval_id = a.id AND v.choice = CASE WHEN a.state = 'denied' THEN 'deny' ELSE 'approve' END AND v.note IS NOT NULL
     ORDER BY v.at DESC, v.person DESC LIMIT 1)
FROM tenure_approval AS a
WHERE a.id = ? AND a.state <> 'pending';

-- name: look
-- An approval with those of its job who may not answer.
SELECT a.state, a.args_hash, a.need, a.asked_of, a.asked_by, a.expires_at, a.job_id, a.why, j.state, j.queue, j.actor,
    j.created_by_user_id, j.requested_by_user_id, a.name
FROM tenure_approval AS a
LEFT JOIN tenure_job AS j ON j.id = a.job_id
WHERE a.id = ?;

-- name: editors
-- Who has given another payload to the job, or to one that it descends from.
WITH RECURSIVE line (id, depth) AS (
    SELECT :job_id, 1
    UNION ALL
    SELECT j.parent_id, l.depth + 1
    FROM line AS l
    CROSS JOIN tenure_job AS j ON j.id = l.id
    WHERE j.parent_id IS NOT NULL AND l.depth < 100
)
SELECT DISTINCT a.actor
FROM line AS l
CROSS JOIN tenure_audit AS a INDEXED BY audit_subject_idx ON a.subject = l.id
WHERE a.act = 'edit' AND a.detail ->> '$.from.payload' <> a.detail ->> '$.to.payload';

-- name: vote_of
SELECT choice, args_hash FROM tenure_vote WHERE approval_id = :id AND person = :person;

-- name: vote
INSERT INTO tenure_vote (approval_id, person, voter, choice, note, args_hash, door, vouched_by, at)
VALUES (:id, :person, :voter, :choice, :note, :args_hash, :door, :vouched_by, :now);

-- name: votes_of
SELECT person, vouched_by FROM tenure_vote WHERE approval_id = :id;

-- name: count_votes
SELECT count(*) FROM tenure_vote WHERE approval_id = :id AND choice = 'approve';

-- name: decide
UPDATE tenure_approval SET state = :state, decided_at = :now WHERE id = :id AND state = 'pending';

-- name: expire
-- What has expired, the earliest first.
UPDATE tenure_approval
SET state = CASE on_expiry WHEN 'grant' THEN 'granted' ELSE 'expired' END,
    why = CASE on_expiry WHEN 'grant' THEN 'expiry' END,
    decided_at = :now
WHERE id IN (
    SELECT id FROM tenure_approval INDEXED BY approval_expires_idx
    WHERE state = 'pending' AND expires_at IS NOT NULL AND expires_at <= :now
    ORDER BY expires_at
    LIMIT :limit)
RETURNING id;

-- name: use
-- An approval is used by one effect. The same effect, in a later attempt, has used it already.
UPDATE tenure_approval
SET state = 'used',
    used_at = coalesce(used_at, :now),
    used_for = :place
WHERE id = :id AND job_id = :job_id AND (state = 'granted' OR state = 'used' AND used_for = :place)
RETURNING args;

-- name: list
-- Newest first.
SELECT a.id, a.job_id, a.step_key, a.name, a.args, a.args_hash, a.text, a.need, a.asked_of, a.asked_by, a.state, a.why, a.on_expiry,
    a.created_at, a.expires_at, a.decided_at, a.used_at, a.used_for, j.kind, j.queue, j.state, j.actor, j.created_by_user_id,
    j.requested_by_user_id, j.workflow_id,
    (SELECT json_group_array(json_array(o.voter, o.choice, o.note, o.door, o.at, o.vouched_by)) FROM (
        SELECT v.voter, v.choice, v.note, v.door, v.at, v.vouched_by FROM tenure_vote AS v WHERE v.approval_id = a.id ORDER BY v.at, v.person) AS o)
FROM tenure_approval AS a
LEFT JOIN tenure_job AS j ON j.id = a.job_id
WHERE (:ids IS NULL OR a.id IN (SELECT value FROM json_each(:ids)))
    AND (:after IS NULL OR a.id < :after)
    AND (:job_id IS NULL OR a.job_id = :job_id)
    AND (json_array_length(:states) = 0 OR a.state IN (SELECT value FROM json_each(:states)))
ORDER BY a.id DESC
LIMIT :limit;

-- name: list_pending
-- The same of those that wait for an answer, by their own index.
SELECT a.id, a.job_id, a.step_key, a.name, a.args, a.args_hash, a.text, a.need, a.asked_of, a.asked_by, a.state, a.why, a.on_expiry,
    a.created_at, a.expires_at, a.decided_at, a.used_at, a.used_for, j.kind, j.queue, j.state, j.actor, j.created_by_user_id,
    j.requested_by_user_id, j.workflow_id,
    (SELECT json_group_array(json_array(o.voter, o.choice, o.note, o.door, o.at, o.vouched_by)) FROM (
        SELECT v.voter, v.choice, v.note, v.door, v.at, v.vouched_by FROM tenure_vote AS v WHERE v.approval_id = a.id ORDER BY v.at, v.person) AS o)
FROM tenure_approval AS a INDEXED BY approval_pending_idx
LEFT JOIN tenure_job AS j ON j.id = a.job_id
WHERE a.state = 'pending'
    AND (:after IS NULL OR a.id < :after)
ORDER BY a.id DESC
LIMIT :limit;

-- name: count_pending
SELECT count(*) FROM (SELECT 1 FROM tenure_approval INDEXED BY approval_pending_idx WHERE state = 'pending' LIMIT 1000);

-- name: clean
-- The arguments go with the payload of their job; that they were asked about, and their hash, stays.
UPDATE tenure_approval SET args = NULL, text = '' WHERE job_id IN (SELECT value FROM json_each(:ids)) AND args IS NOT NULL;

-- name: clean_votes
UPDATE tenure_vote SET note = NULL
WHERE note IS NOT NULL AND approval_id IN (SELECT id FROM tenure_approval WHERE job_id IN (SELECT value FROM json_each(:ids)));

-- name: drop_votes
DELETE FROM tenure_vote WHERE approval_id IN (SELECT id FROM tenure_approval WHERE job_id IN (SELECT value FROM json_each(:ids)));

-- name: drop
DELETE FROM tenure_approval WHERE job_id IN (SELECT value FROM json_each(:ids));

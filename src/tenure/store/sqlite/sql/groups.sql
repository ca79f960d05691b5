-- Groups: children that a job waits for.

-- name: group_insert
INSERT INTO tenure_job_group (id, parent_id, step_key, need, tolerate, fail_fast, window_size, released, cancel_rest, created_at)
VALUES (:id, :parent_id, :step_key, :need, :tolerate, :fail_fast, :window_size, :window_size, :cancel_rest, :now)
ON CONFLICT DO NOTHING;

-- name: group_of_step
-- How far a group is made; no row if its step stands for another.
SELECT made, total, released FROM tenure_job_group WHERE id = :id AND parent_id = :parent_id AND step_key = :step_key;

-- name: group_grow
UPDATE tenure_job_group SET made = :made, total = :total WHERE id = :id;

-- name: group_cursor
-- The group's step tells how many were made, so that after a crash the next attempt goes on there.
UPDATE tenure_step SET value = :value WHERE job_id = :parent_id AND key = :step_key AND state = 'open';

-- name: group_over
UPDATE tenure_job_group SET state = :state, ended_at = :now WHERE id = :id;

-- name: members_insert
-- Children (a JSON array of ids) at positions from :at on.
INSERT INTO tenure_group_member (group_id, position, job_id) SELECT :group_id, :at + key, value FROM json_each(:ids);

-- name: members_hold
-- New children (a JSON array of ids) that wait for others of their group to end.
UPDATE tenure_job
SET state = 'waiting',
    waiting_for = :awaits,
    place_at = run_at,
    run_at = :never,
    is_due = 0
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: members_between
SELECT job_id FROM tenure_group_member WHERE group_id = :id AND position >= :first AND position < :until;

-- name: group_count
-- Count ends of children.
UPDATE tenure_job_group
SET ended = ended + :ended,
    failed = failed + :failed,
    cancelled = cancelled + :cancelled
WHERE id = :id
RETURNING state, total, made, ended, failed, cancelled, need, tolerate, fail_fast, window_size, released, cancel_rest;

-- name: group_release
UPDATE tenure_job_group SET released = :until WHERE id = :id;

-- name: group
SELECT id, parent_id, step_key, state, total, made, ended, failed, cancelled, need, tolerate, fail_fast, window_size, cancel_rest,
    created_at, ended_at
FROM tenure_job_group
WHERE id = ?;

-- name: open_groups
-- The groups of a job whose children have not all ended.
SELECT id FROM tenure_job_group WHERE parent_id = ? AND coalesce(ended < total, 1) ORDER BY id;

-- name: children
-- A group's children by position, with how they stand.
SELECT m.position, m.job_id, j.kind, j.state, j.result, j.result_summary, j.failure_class, j.last_error,
    (SELECT d.id FROM tenure_dead_letter AS d WHERE d.job_id = m.job_id ORDER BY d.token DESC LIMIT 1)
FROM tenure_group_member AS m
LEFT JOIN tenure_job AS j ON j.id = m.job_id
WHERE m.group_id = :group_id AND m.position > :after AND (:states IS NULL OR j.state IN (SELECT value FROM json_each(:states)))
ORDER BY m.position
LIMIT :limit;

-- name: let_none_go
-- A group whose children are being cancelled makes no room for others.
UPDATE tenure_job_group SET released = NULL WHERE id = ? AND released IS NOT NULL;

-- name: members_page
-- Places of a group behind :after, and the children there that have not ended and were not asked to stop.
SELECT m.position, j.id
FROM (
    SELECT position, job_id FROM tenure_group_member WHERE group_id = :group_id AND position > :after ORDER BY position LIMIT :limit
) AS m
LEFT JOIN tenure_job AS j ON j.id = m.job_id AND j.finished_at IS NULL AND j.cancel_requested_at IS NULL
ORDER BY m.position;

-- name: members_drop
-- The members of groups that stand for forgotten steps (a JSON array of keys).
DELETE FROM tenure_group_member
WHERE group_id IN (
    SELECT id FROM tenure_job_group WHERE parent_id = :job_id AND step_key IN (SELECT value FROM json_each(:keys))
);

-- name: groups_drop
DELETE FROM tenure_job_group WHERE parent_id = :job_id AND step_key IN (SELECT value FROM json_each(:keys));

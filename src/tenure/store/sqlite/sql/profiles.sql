-- Installed profiles, and the indexes behind their views.

-- name: profile_found
-- Whether a profile is installed.
SELECT 1 FROM tenure_profile WHERE name = ?;

-- name: profile_set
-- Note a profile down. What operators have set in `settings` stays.
INSERT INTO tenure_profile (name, title, policy, words, settings, shows, checksum, actor, installed_at, updated_at)
VALUES (:name, :title, :policy, :words, :settings, :shows, :checksum, :actor, :now, :now)
ON CONFLICT (name) DO UPDATE
SET title = excluded.title,
    policy = excluded.policy,
    words = excluded.words,
    settings = json_patch(excluded.settings, tenure_profile.settings),
    shows = excluded.shows,
    checksum = excluded.checksum,
    actor = excluded.actor,
    updated_at = excluded.updated_at;

-- name: profiles
-- Those that are installed here, by name, with their queues.
SELECT name, title, policy, words, settings, shows,
    (
        SELECT json_group_array(q.name)
        FROM (SELECT name FROM tenure_queue WHERE tenure_queue.profile = tenure_profile.name ORDER BY name) AS q
    ) AS queues,
    checksum, actor, installed_at, updated_at
FROM tenure_profile
ORDER BY name;

-- name: profile_people
-- The indexes behind the views of profiles. They are made with the first profile, so that databases without one do not pay for them.
-- Times are those that the views show, so that a view sorted by one is read in that order and not sorted.

-- Jobs that have ended, by state and when, and by kind and state: paid once, when a job ends, and once more when retention empties it.
CREATE INDEX IF NOT EXISTS job_ended_idx
ON tenure_job (profile, state, datetime(finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (finished_at / 1000 % 1000), -3))
WHERE finished_at IS NOT NULL AND cleaned_at IS NULL;
CREATE INDEX IF NOT EXISTS job_ended_kind_idx
ON tenure_job (profile, kind, state, datetime(finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (finished_at / 1000 % 1000), -3))
WHERE finished_at IS NOT NULL AND cleaned_at IS NULL;
CREATE INDEX IF NOT EXISTS job_emptied_idx
ON tenure_job (profile, state, datetime(finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (finished_at / 1000 % 1000), -3))
WHERE finished_at IS NOT NULL AND cleaned_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS job_emptied_kind_idx
ON tenure_job (profile, kind, state, datetime(finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (finished_at / 1000 % 1000), -3))
WHERE finished_at IS NOT NULL AND cleaned_at IS NOT NULL;

-- Jobs queued for the first time, by age and by kind. These two are what a live job pays for its profile.
CREATE INDEX IF NOT EXISTS job_fresh_idx
ON tenure_job (profile, is_due, datetime(created_at / 1000000, 'unixepoch') || '.' || substr('00' || (created_at / 1000 % 1000), -3))
WHERE state = 'queued' AND (failure_class IS NULL OR attempt = 0);
CREATE INDEX IF NOT EXISTS job_fresh_kind_idx
ON tenure_job (profile, kind, is_due)
WHERE state = 'queued' AND (failure_class IS NULL OR attempt = 0);
-- Jobs queued again after a failed attempt.
CREATE INDEX IF NOT EXISTS job_retry_idx
ON tenure_job (profile, datetime(created_at / 1000000, 'unixepoch') || '.' || substr('00' || (created_at / 1000 % 1000), -3))
WHERE state = 'queued' AND failure_class IS NOT NULL AND attempt > 0;
CREATE INDEX IF NOT EXISTS job_retry_kind_idx
ON tenure_job (profile, kind)
WHERE state = 'queued' AND failure_class IS NOT NULL AND attempt > 0;
-- Suspended jobs.
CREATE INDEX IF NOT EXISTS job_asleep_idx
ON tenure_job (profile, datetime(created_at / 1000000, 'unixepoch') || '.' || substr('00' || (created_at / 1000 % 1000), -3))
WHERE state = 'waiting';
CREATE INDEX IF NOT EXISTS job_asleep_kind_idx
ON tenure_job (profile, kind)
WHERE state = 'waiting';

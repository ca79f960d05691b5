-- The indexes behind the views of profiles. They are made with the first profile, so that nobody pays for them who has none.
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

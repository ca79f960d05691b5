-- The indexes behind the views of profiles. They are made with the first profile, so that nobody pays for them who has none.
-- No live job pays for them: each holds jobs that have ended, or that have failed before.

-- By kind, and by kind and state: paid once, when a job ends. Times are those that the views show.
CREATE INDEX IF NOT EXISTS job_kind_idx
ON tenure_job (profile, kind, state, datetime(finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (finished_at / 1000 % 1000), -3))
WHERE finished_at IS NOT NULL;
-- By state and by when it ended.
CREATE INDEX IF NOT EXISTS job_ended_idx
ON tenure_job (profile, state, datetime(finished_at / 1000000, 'unixepoch') || '.' || substr('00' || (finished_at / 1000 % 1000), -3))
WHERE finished_at IS NOT NULL;
-- Jobs queued again after a failed attempt.
CREATE INDEX IF NOT EXISTS job_retry_idx
ON tenure_job (profile, run_at)
WHERE state = 'queued' AND failure_class IS NOT NULL AND attempt > 0;

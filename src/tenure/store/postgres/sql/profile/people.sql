-- The indexes behind the views of profiles. They are made with the first profile, so that nobody pays for them who has none.
-- tenure.first_moment says why the views use them, and in their order.

-- Jobs that have ended, by state and when, and by kind and state: paid once, when a job ends, and once more when retention empties it.
CREATE INDEX IF NOT EXISTS job_ended_idx ON tenure.job (profile, state, finished_at)
WHERE finished_at IS NOT NULL AND cleaned_at IS NULL;
CREATE INDEX IF NOT EXISTS job_ended_kind_idx ON tenure.job (profile, kind, state, finished_at)
WHERE finished_at IS NOT NULL AND cleaned_at IS NULL;
CREATE INDEX IF NOT EXISTS job_emptied_idx ON tenure.job (profile, state, finished_at)
WHERE cleaned_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS job_emptied_kind_idx ON tenure.job (profile, kind, state, finished_at)
WHERE cleaned_at IS NOT NULL;
-- Jobs queued for the first time, by age and by kind. These two are what a live job pays for its profile; one of no profile pays nothing.
CREATE INDEX IF NOT EXISTS job_fresh_idx ON tenure.job (profile, is_due, created_at)
WHERE profile <> 'default' AND state = 'queued' AND (failure_class IS NULL OR attempt = 0);
CREATE INDEX IF NOT EXISTS job_fresh_kind_idx ON tenure.job (profile, kind, is_due, created_at)
WHERE profile <> 'default' AND state = 'queued' AND (failure_class IS NULL OR attempt = 0);
-- Jobs queued again after a failed attempt.
CREATE INDEX IF NOT EXISTS job_retry_idx ON tenure.job (profile, created_at)
WHERE state = 'queued' AND failure_class IS NOT NULL AND attempt > 0;
CREATE INDEX IF NOT EXISTS job_retry_kind_idx ON tenure.job (profile, kind, created_at)
WHERE state = 'queued' AND failure_class IS NOT NULL AND attempt > 0;
-- Suspended jobs.
CREATE INDEX IF NOT EXISTS job_asleep_idx ON tenure.job (profile, created_at)
WHERE state = 'waiting';
CREATE INDEX IF NOT EXISTS job_asleep_kind_idx ON tenure.job (profile, kind, created_at)
WHERE state = 'waiting';

-- Small tables are never analysed by themselves, and without statistics the planner expects hundreds of queues.
ANALYZE tenure.queue, tenure.tally_mark, tenure.gate;

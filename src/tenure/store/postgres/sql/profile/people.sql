-- The indexes behind the views of profiles. They are made with the first profile, so that nobody pays for them who has none.
-- No live job pays for them: each holds jobs that have ended, or that have failed before.

-- By kind, and by kind and state: paid once, when a job ends.
CREATE INDEX IF NOT EXISTS job_kind_idx ON tenure.job (profile, kind, state, finished_at)
WHERE finished_at IS NOT NULL;
-- By state, for ends that are rare: a good end does not pay.
CREATE INDEX IF NOT EXISTS job_trouble_idx ON tenure.job (profile, state, finished_at) INCLUDE (cleaned_at)
WHERE state IN ('failed', 'dead', 'cancelled');
-- Jobs queued again after a failed attempt.
CREATE INDEX IF NOT EXISTS job_retry_idx ON tenure.job (profile, run_at)
WHERE state = 'queued' AND failure_class IS NOT NULL AND attempt > 0;

-- Small tables are never analysed by themselves, and without statistics the planner expects hundreds of queues.
ANALYZE tenure.queue, tenure.tally_mark, tenure.gate;

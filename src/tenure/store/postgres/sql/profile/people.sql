-- The indexes behind the views of profiles. They are made with the first profile, so that nobody pays for them who has none.
-- No live job pays for them: each holds jobs that have ended, or that have failed before.

-- By state and when it ended, by kind, and by kind and state: paid once, when a job ends, and once more when retention empties it.
-- tenure.by_index says why the views use them.
CREATE INDEX IF NOT EXISTS job_ended_idx ON tenure.job (profile, state, finished_at)
WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND tenure.by_index(finished_at) IS NOT NULL;
CREATE INDEX IF NOT EXISTS job_ended_kind_idx ON tenure.job (profile, kind, state, finished_at)
WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND tenure.by_index(finished_at) IS NOT NULL;
CREATE INDEX IF NOT EXISTS job_emptied_idx ON tenure.job (profile, state, finished_at)
WHERE cleaned_at IS NOT NULL AND tenure.by_index(finished_at) IS NOT NULL;
CREATE INDEX IF NOT EXISTS job_emptied_kind_idx ON tenure.job (profile, kind, state, finished_at)
WHERE cleaned_at IS NOT NULL AND tenure.by_index(finished_at) IS NOT NULL;
-- Jobs queued again after a failed attempt.
CREATE INDEX IF NOT EXISTS job_retry_idx ON tenure.job (profile, run_at)
WHERE state = 'queued' AND failure_class IS NOT NULL AND attempt > 0;

-- Small tables are never analysed by themselves, and without statistics the planner expects hundreds of queues.
ANALYZE tenure.queue, tenure.tally_mark, tenure.gate;

-- Limiters. See tenure.store.limits.

-- name: limiters
-- All of them, or those of the given keys (a JSON array).
SELECT key, per_minute, tokens_per_minute, tokens_per_job, requests, tokens, level_at, blocked_until, strikes, probes, probes_left,
    probe_at, reason, updated_at
FROM tenure_limiter
WHERE :keys IS NULL OR key IN (SELECT value FROM json_each(:keys))
ORDER BY key;

-- name: put
-- Write the changing numbers of a limiter, and make it if it is not there.
INSERT INTO tenure_limiter (
    key, per_minute, tokens_per_minute, tokens_per_job, requests, tokens, level_at, blocked_until, strikes, probes, probes_left, probe_at,
    reason, updated_at
)
VALUES (
    :key, :per_minute, :tokens_per_minute, :tokens_per_job, :requests, :tokens, :level_at, :blocked_until, :strikes, :probes, :probes_left,
    :probe_at, :reason, :now
)
ON CONFLICT (key) DO UPDATE
SET per_minute = excluded.per_minute,
    tokens_per_minute = excluded.tokens_per_minute,
    tokens_per_job = excluded.tokens_per_job,
    requests = excluded.requests,
    tokens = excluded.tokens,
    level_at = excluded.level_at,
    blocked_until = excluded.blocked_until,
    strikes = excluded.strikes,
    probes = excluded.probes,
    probes_left = excluded.probes_left,
    probe_at = excluded.probe_at,
    reason = coalesce(excluded.reason, reason),
    updated_at = excluded.updated_at;

-- name: relieve
-- A job that was granted at a moment behind the block has succeeded: the slow reopening ends.
UPDATE tenure_limiter
SET strikes = 0,
    probes = 0,
    probes_left = 0,
    probe_at = NULL,
    updated_at = :now
WHERE key = :key AND strikes > 0 AND coalesce(blocked_until, 0) <= :granted_at;

-- name: remove
DELETE FROM tenure_limiter WHERE key = ?;

-- name: held_back
-- The queues that have claimable jobs with a limiter.
SELECT q.name
FROM tenure_queue AS q
WHERE EXISTS (
    SELECT 1
    FROM tenure_job AS j INDEXED BY job_claim_idx
    WHERE j.queue = q.name AND j.state = 'queued' AND j.is_due = 1 AND j.suspicion < 2 AND j.limiter > ''
);

-- name: next_limiter
-- The limiters behind these that claimable jobs of the queue carry: one look, the jobs are not walked.
SELECT min(limiter)
FROM tenure_job INDEXED BY job_claim_idx
WHERE queue = :queue AND state = 'queued' AND is_due = 1 AND suspicion < 2 AND limiter > :limiter;

-- name: limited
-- How many claimable jobs carry these limiters, up to a cap, and when the first of them came due.
SELECT count(*), min(run_at)
FROM (
    SELECT run_at
    FROM tenure_job INDEXED BY job_claim_idx
    WHERE queue = :queue AND state = 'queued' AND is_due = 1 AND suspicion < 2 AND limiter = :limiter
    LIMIT :cap
);

-- name: limited_first
-- The next of them to start.
SELECT id
FROM tenure_job INDEXED BY job_claim_idx
WHERE queue = :queue AND state = 'queued' AND is_due = 1 AND suspicion < 2 AND limiter = :limiter
ORDER BY rank, run_at, id
LIMIT :sample;

-- name: prune
-- Keys without rates whose last block ended before a moment.
DELETE FROM tenure_limiter
WHERE per_minute IS NULL AND tokens_per_minute IS NULL AND coalesce(blocked_until, updated_at) <= :before AND updated_at <= :before;

-- attempt_end: write down how an attempt ended that was no success, and decide what comes next. job_end.sql carries it out.
-- Invariant: only the grant that holds the lease may end the attempt: the newest token, and a lease that has not run out by the
-- store's clock, taken back or not. An expired lease is taken back by anybody (move 'expire'), always under the token it was seen with.
-- A job whose lease ran out is claimable at once, with its old run_at: a backoff is for failures that a handler reported.
-- The attempt was counted by the claim, so it is the last one when attempt >= max_attempts. Jitter only lengthens a delay.
-- A cancel that was asked for wins over every other end; move 'complete' is a success that came after it.
INSERT INTO tenure_attempt (
    job_id, token, attempt, worker, claimed_at, ended_at, outcome, failure_class, error, fingerprint, run_at
)
SELECT e.job_id, e.token, e.attempt, e.worker, e.claimed_at, :now, e.outcome, e.failure_class, e.error,
    tenure_fingerprint(e.failure_class, e.error),
    CASE
        WHEN e.outcome = 'suspended' THEN coalesce(:now + :delay, 253402300799999999)
        WHEN e.outcome = 'released' AND :delay > 0 THEN :now + :delay
        WHEN e.outcome = 'released' THEN e.old_run_at  -- it keeps its place
        WHEN e.outcome = 'expired' AND e.goes_on THEN e.old_run_at
        WHEN e.outcome = 'retried' THEN
            :now + coalesce(
                :delay,
                CAST(1000000 * min(e.cap, e.base * CASE e.shape
                    WHEN 'none' THEN 0
                    WHEN 'constant' THEN 1
                    WHEN 'linear' THEN e.attempt
                    WHEN 'power' THEN tenure_power(e.attempt, e.power)
                    ELSE tenure_power(e.factor, min(e.attempt - 1, 60))
                END) * (1 + e.jitter * (random() & 1048575) / 1048575.0) AS INTEGER)
            )
    END
FROM (
    SELECT j.id AS job_id,
        j.token,
        j.attempt,
        j.lease_owner AS worker,
        j.claimed_at,
        j.run_at AS old_run_at,
        j.cancel_requested_at IS NULL AND j.attempt < j.max_attempts AS goes_on,
        CASE
            WHEN :move = 'expire' THEN 'expired'
            WHEN :move = 'stop' OR j.cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN :move = 'reject' THEN 'failed'
            WHEN :move = 'release' THEN 'released'
            WHEN :move = 'suspend' THEN 'suspended'
            WHEN j.attempt >= j.max_attempts THEN 'dead'
            ELSE 'retried'
        END AS outcome,
        CASE
            WHEN :move = 'expire' THEN
                CASE
                    WHEN EXISTS (
                        -- Seen after the lease ran out: its worker lives, only this lease was not kept.
                        SELECT 1
                        FROM tenure_worker AS w
                        WHERE w.id = j.lease_owner AND w.last_seen_at >= j.lease_until AND NOT :is_gone
                    ) THEN 'lease_lost'
                    ELSE 'crash'
                END
            WHEN :move = 'stop' OR j.cancel_requested_at IS NOT NULL THEN 'cancelled'
            ELSE :failure_class
        END AS failure_class,
        CASE
            WHEN :move = 'expire' THEN 'The lease ran out before the attempt ended: its worker crashed, hung, or lost the database.'
            ELSE :error
        END AS error,
        coalesce(json_extract(j.backoff, '$.shape'), q.backoff_shape) AS shape,
        coalesce(json_extract(j.backoff, '$.base_seconds'), q.backoff_base_seconds) AS base,
        coalesce(json_extract(j.backoff, '$.power'), q.backoff_power) AS power,
        coalesce(json_extract(j.backoff, '$.factor'), q.backoff_factor) AS factor,
        coalesce(json_extract(j.backoff, '$.cap_seconds'), q.backoff_cap_seconds) AS cap,
        coalesce(json_extract(j.backoff, '$.jitter'), q.backoff_jitter) AS jitter
    FROM tenure_job AS j
    JOIN tenure_queue AS q ON q.name = j.queue
    WHERE j.id = :job_id
        AND j.token = :token
        AND j.state IN ('leased', 'running')
        AND (:move = 'expire' OR j.lease_until > :now)
        AND (:move <> 'complete' OR j.cancel_requested_at IS NOT NULL)
) AS e
WHERE true
ON CONFLICT (job_id, token) DO NOTHING;

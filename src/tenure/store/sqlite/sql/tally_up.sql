-- tally_up: count what ended well, and what was cleaned, after :after and up to :until.
INSERT INTO tenure_tally (profile, kind, state, is_cleaned, day, jobs, attempts, attempts_max, oldest_at, newest_at)
SELECT profile, kind, state, is_cleaned, day, count(*), sum(attempt), max(attempt), min(created_at), max(created_at)
FROM (
    SELECT profile, kind, state, 0 AS is_cleaned, finished_at / 86400000000 AS day, attempt, created_at
    FROM tenure_job INDEXED BY job_finished_idx
    WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND state = 'succeeded' AND finished_at > :after AND finished_at <= :until
    UNION ALL
    SELECT profile, kind, state, 1, finished_at / 86400000000, attempt, created_at
    FROM tenure_job INDEXED BY job_cleaned_idx
    WHERE cleaned_at IS NOT NULL AND finished_at > :after AND finished_at <= :until
)
WHERE true
GROUP BY profile, kind, state, is_cleaned, day
ON CONFLICT (profile, kind, state, is_cleaned, day) DO UPDATE
SET jobs = jobs + excluded.jobs,
    attempts = attempts + excluded.attempts,
    attempts_max = max(attempts_max, excluded.attempts_max),
    oldest_at = min(oldest_at, excluded.oldest_at),
    newest_at = max(newest_at, excluded.newest_at);

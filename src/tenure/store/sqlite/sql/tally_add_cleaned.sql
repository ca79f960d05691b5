-- tally_add_cleaned: these jobs count as cleaned from now on, where they were counted before.
INSERT INTO tenure_tally (profile, kind, state, is_cleaned, day, jobs, attempts, attempts_max, oldest_at, newest_at)
SELECT profile, kind, state, 1, finished_at / 86400000000 AS day, count(*), sum(attempt), max(attempt), min(created_at), max(created_at)
FROM tenure_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND finished_at <= :until
GROUP BY profile, kind, state, day
ON CONFLICT (profile, kind, state, is_cleaned, day) DO UPDATE
SET jobs = jobs + excluded.jobs,
    attempts = attempts + excluded.attempts,
    attempts_max = max(attempts_max, excluded.attempts_max),
    oldest_at = min(oldest_at, excluded.oldest_at),
    newest_at = max(newest_at, excluded.newest_at);

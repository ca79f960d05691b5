-- tally_take: these jobs no longer count as :is_cleaned. Only what was counted is taken.
UPDATE tenure_tally
SET jobs = tenure_tally.jobs - m.jobs,
    attempts = tenure_tally.attempts - m.attempts
FROM (
    SELECT profile, kind, state, finished_at / 86400000000 AS day, count(*) AS jobs, sum(attempt) AS attempts
    FROM tenure_job
    WHERE id IN (SELECT value FROM json_each(:ids)) AND finished_at <= :until
    GROUP BY profile, kind, state, day
) AS m
WHERE tenure_tally.profile = m.profile AND tenure_tally.kind = m.kind AND tenure_tally.state = m.state
    AND tenure_tally.day = m.day AND tenure_tally.is_cleaned = :is_cleaned;

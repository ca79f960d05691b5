-- Wake-ups: which queues to wake listeners for.

-- name: claimable
-- Which of these queues have something that a claim would get.
-- Paused queues and closed gates count as nothing, so that no worker is woken for nothing.
SELECT q.name
FROM json_each(:queues) AS asked
JOIN tenure_queue AS q ON q.name = asked.value
WHERE q.paused_at IS NULL
    AND NOT EXISTS (
        SELECT 1
        FROM tenure_gate AS g
        WHERE g.is_open = 0
            AND g.name IN (
                'master', 'worker', 'notify', q.profile || '.master', q.profile || '.worker', q.profile || '.notify',
                'queue:' || q.name
            )
    )
    AND (
        EXISTS (
            SELECT 1
            FROM tenure_job AS j INDEXED BY job_claim_idx
            WHERE j.queue = q.name AND j.state = 'queued' AND j.is_due = 1 AND j.suspicion < 2
        )
        OR EXISTS (
            SELECT 1
            FROM tenure_job AS j INDEXED BY job_suspect_idx
            WHERE j.queue = q.name AND j.state = 'queued' AND j.is_due = 1 AND j.suspicion >= 2
        )
    );

-- name: notify_gates
-- The queues among these whose wake-ups are switched off.
SELECT q.name
FROM tenure_gate AS g
CROSS JOIN tenure_queue AS q ON g.name IN ('notify', q.profile || '.notify')
WHERE g.is_open = 0 AND q.name IN (SELECT value FROM json_each(:queues));

-- name: data_version
PRAGMA data_version;

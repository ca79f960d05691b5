-- queue_live: the profile of a queue, and whether it has jobs that have not ended.
SELECT q.profile,
    EXISTS (
        SELECT 1
        FROM tenure_job AS j
        WHERE j.queue = q.name AND j.state IN ('queued', 'leased', 'running', 'waiting')
    )
FROM tenure_queue AS q
WHERE q.name = ?;

-- heartbeat_gate: the closed gate, if any, that keeps the row of a worker of these queues from being written.
SELECT min(g.name)
FROM tenure_gate AS g
WHERE g.is_open = 0
    AND (
        g.name = 'heartbeat'
        OR g.name IN (
            SELECT q.profile || '.heartbeat'
            FROM tenure_queue AS q
            WHERE q.name IN (SELECT value FROM json_each(:queues))
        )
    );

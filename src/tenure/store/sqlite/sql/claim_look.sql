-- claim_look: the asked queues in the order given, with the terms of their leases and the gates that stand before them.
-- A queue that does not exist comes back with a NULL name.
SELECT asked.value AS asked,
    q.name,
    q.paused_at IS NOT NULL AS is_paused,
    q.start_on_claim,
    CAST(1000000 * q.lease_seconds AS INTEGER) AS lease,
    CAST(1000000 * q.lease_max_seconds AS INTEGER) AS lease_max,
    q.concurrency,
    q.concurrency_per_key,
    (
        SELECT min(g.name)
        FROM tenure_gate AS g
        WHERE g.is_open = 0 AND g.name IN ('master', 'worker', q.profile || '.master', q.profile || '.worker')
    ) AS closed_gate,
    (SELECT g.name FROM tenure_gate AS g WHERE g.is_open = 0 AND g.name = 'queue:' || q.name) AS closed_queue_gate
FROM json_each(:queues) AS asked
LEFT JOIN tenure_queue AS q ON q.name = asked.value
ORDER BY asked.key;

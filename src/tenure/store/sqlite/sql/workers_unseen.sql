-- workers_unseen: workers that were not seen since a moment, the longest ago first.
-- While the gate `heartbeat` is closed nobody can be seen, so nobody counts as silent.
SELECT id
FROM tenure_worker
WHERE last_seen_at <= :since
    AND NOT EXISTS (SELECT 1 FROM tenure_gate WHERE name = 'heartbeat' AND is_open = 0)
ORDER BY last_seen_at
LIMIT :limit;

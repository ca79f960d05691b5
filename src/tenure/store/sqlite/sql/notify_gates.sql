-- notify_gates: the queues among these whose wake-ups are switched off.
SELECT q.name
FROM tenure_gate AS g
CROSS JOIN tenure_queue AS q ON g.name IN ('notify', q.profile || '.notify')
WHERE g.is_open = 0 AND q.name IN (SELECT value FROM json_each(:queues));

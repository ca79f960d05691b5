-- schedules: all by name, or those asked for (a JSON array).
SELECT name, spec, last_tick, paused_at, paused_by, created_at, updated_at
FROM tenure_schedule
WHERE (:names IS NULL OR name IN (SELECT value FROM json_each(:names)))
ORDER BY name;

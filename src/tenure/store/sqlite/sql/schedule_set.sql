-- schedule_set: declare a schedule. A new one starts now; a known one keeps its last tick and its pause.
-- No row changed: it stands as declared.
INSERT INTO tenure_schedule (name, spec, last_tick, created_at, updated_at)
VALUES (:name, :spec, :now, :now, :now)
ON CONFLICT (name) DO UPDATE
SET spec = excluded.spec,
    updated_at = excluded.updated_at
WHERE spec <> excluded.spec;

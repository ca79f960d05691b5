-- gate_set: open or close a gate.
INSERT INTO tenure_gate (name, is_open, actor, updated_at)
VALUES (:name, :is_open, :actor, :now)
ON CONFLICT (name) DO UPDATE
SET is_open = excluded.is_open,
    actor = excluded.actor,
    updated_at = excluded.updated_at;

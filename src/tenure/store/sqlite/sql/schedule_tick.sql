-- schedule_tick: deal with all ticks up to one. Invariant: the row decides; who comes second finds another last tick.
UPDATE tenure_schedule
SET last_tick = :tick,
    updated_at = :now
WHERE name = :name AND last_tick = :after AND paused_at IS NULL;

-- schedule_pause: pause or resume. Resuming starts from now: what would have run meanwhile was not wanted.
UPDATE tenure_schedule
SET paused_at = CASE WHEN :paused THEN :now END,
    paused_by = CASE WHEN :paused THEN :actor END,
    last_tick = CASE WHEN :paused THEN last_tick ELSE :now END,
    updated_at = :now
WHERE name = :name AND (paused_at IS NOT NULL) <> :paused;

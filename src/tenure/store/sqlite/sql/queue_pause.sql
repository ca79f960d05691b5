-- queue_pause: pause or resume a queue. No row changed: it was so already.
UPDATE tenure_queue
SET paused_at = CASE WHEN :paused THEN :now END,
    paused_by = CASE WHEN :paused THEN :actor END,
    updated_at = :now
WHERE name = :name AND (paused_at IS NOT NULL) <> :paused;

-- events_wanted: whether any queue asks for lifecycle events. Read from an index that is empty when none does.
SELECT 1 FROM tenure_queue INDEXED BY queue_events_idx WHERE events = 1 LIMIT 1;

-- enqueue_at_once: one job due now, with nothing but kind, payload and queue, as a transaction of its own. No row means that nothing was
-- done: its terms were read under another stamp, or its id is taken. Then enqueue_plain.sql has its turn, inside a transaction.
INSERT INTO tenure_job (
    id, payload, kind, queue, profile, priority, rank, max_attempts, run_at, is_due, created_at, updated_at
)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 1, ?9, ?9
FROM tenure_stamp
WHERE stamp = ?10
ON CONFLICT DO NOTHING;

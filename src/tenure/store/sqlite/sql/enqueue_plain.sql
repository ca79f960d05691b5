-- enqueue_plain: a job with nothing but kind, payload and queue. As enqueue.sql does, with fewer values to hand over.
INSERT INTO tenure_job (
    id, payload, kind, queue, profile, priority, rank, max_attempts, run_at, is_due, created_at, updated_at
)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

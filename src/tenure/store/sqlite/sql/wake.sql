-- wake: waiting → queued, due at once. By id (a JSON array), or all that wait for one thing.
UPDATE tenure_job
SET state = 'queued',
    run_at = :now,
    is_due = 1,
    waiting_for = NULL,
    updated_at = :now
WHERE state = 'waiting'
    AND (id IN (SELECT value FROM json_each(:ids)) OR waiting_for = :waiting_for)
RETURNING id, queue;

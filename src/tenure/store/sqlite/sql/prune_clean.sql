-- prune_clean: what ended longer ago than its queue retains loses payload, result and error; the row stays.
-- A job with a dead letter that is not closed keeps everything: somebody still has to look at it.
UPDATE tenure_job
SET payload = NULL,
    result = NULL,
    result_summary = NULL,
    progress = NULL,
    last_error = NULL,
    cleaned_at = :now,
    updated_at = :now
WHERE rowid IN (
    SELECT j.rowid
    FROM tenure_job AS j INDEXED BY job_finished_idx
    CROSS JOIN tenure_queue AS q ON q.name = j.queue
    WHERE j.finished_at IS NOT NULL
        AND j.cleaned_at IS NULL
        AND j.finished_at <= :now - 1000000 * coalesce(:older_than_seconds, q.retain_seconds)
        AND NOT EXISTS (SELECT 1 FROM tenure_dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
    ORDER BY j.finished_at
    LIMIT :limit
)
RETURNING id;

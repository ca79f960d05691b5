-- prunable: what a prune without a limit would remove. What it cleans may be old enough to go at once.
WITH clean AS (
    SELECT j.id, j.finished_at
    FROM tenure_job AS j INDEXED BY job_finished_idx
    CROSS JOIN tenure_queue AS q ON q.name = j.queue
    WHERE j.finished_at IS NOT NULL
        AND j.cleaned_at IS NULL
        AND j.finished_at <= :now - 1000000 * coalesce(:older_than_seconds, q.retain_seconds)
        AND NOT EXISTS (SELECT 1 FROM tenure_dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
),
gone AS (
    SELECT id FROM clean WHERE finished_at <= :now - 1000000 * :delete_after_seconds
    UNION ALL
    SELECT j.id
    FROM tenure_job AS j INDEXED BY job_cleaned_idx
    WHERE j.cleaned_at IS NOT NULL
        AND j.finished_at <= :now - 1000000 * :delete_after_seconds
        AND NOT EXISTS (SELECT 1 FROM tenure_dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
)
SELECT (SELECT count(*) FROM clean),
    (SELECT count(*) FROM gone),
    (SELECT count(*) FROM tenure_event WHERE job_id IN (SELECT id FROM gone)),
    (SELECT count(*) FROM tenure_worker WHERE last_seen_at <= :now - 1000000 * :worker_seconds),
    (SELECT count(*) FROM tenure_metric WHERE minute <= :now - 1000000 * :metric_seconds);

-- prune_ids: cleaned rows that ended long enough ago to go altogether.
SELECT id
FROM tenure_job INDEXED BY job_cleaned_idx
WHERE cleaned_at IS NOT NULL
    AND finished_at <= :now - 1000000 * :delete_after_seconds
    AND NOT EXISTS (SELECT 1 FROM tenure_dead_letter AS d WHERE d.job_id = tenure_job.id AND d.triage <> 'closed')
ORDER BY finished_at
LIMIT :limit;

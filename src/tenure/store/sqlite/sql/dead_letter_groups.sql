-- dead_letter_groups: deaths that look alike, with the newest of each as a sample.
SELECT g.fingerprint, g.kind, g.queue, g.letters, g.pending, g.first_at, g.last_at, d.final_error, d.job_id
FROM (
    SELECT fingerprint, kind, queue,
        count(*) AS letters,
        sum(triage = 'pending') AS pending,
        min(moved_at) AS first_at,
        max(moved_at) AS last_at
    FROM tenure_dead_letter
    WHERE (:triage IS NULL OR triage IN (SELECT value FROM json_each(:triage)))
    GROUP BY fingerprint, kind, queue
    ORDER BY letters DESC, last_at DESC
    LIMIT :limit
) AS g
JOIN tenure_dead_letter AS d ON d.id = (
    SELECT s.id
    FROM tenure_dead_letter AS s
    WHERE s.fingerprint = g.fingerprint AND s.kind = g.kind AND s.queue = g.queue
        AND (:triage IS NULL OR s.triage IN (SELECT value FROM json_each(:triage)))
    ORDER BY s.moved_at DESC, s.id DESC
    LIMIT 1
)
ORDER BY g.letters DESC, g.last_at DESC;

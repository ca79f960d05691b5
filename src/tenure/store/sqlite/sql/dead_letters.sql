-- dead_letters: dead letters that match, newest first. Columns in the order of DeadLetter's fields.
SELECT
    id, job_id, queue, kind, state, payload, attempts, crashes, failure_class, final_error, fingerprint,
    moved_at, moved_by, triage, triage_note, triaged_at, triaged_by, idempotency_key, actor, run_id,
    workflow_id, source_ref, target_ref, payload_ref
FROM tenure_dead_letter
WHERE (:triage IS NULL OR triage IN (SELECT value FROM json_each(:triage)))
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
    AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
    AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
    AND (:job_id IS NULL OR job_id = :job_id)
    AND (:after_at IS NULL OR (moved_at, id) < (:after_at, :after_id))
ORDER BY moved_at DESC, id DESC
LIMIT :limit;

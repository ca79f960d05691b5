-- revive_letters: the dead letters of a revived job have been dealt with.
UPDATE tenure_dead_letter
SET triage = 'manual_replay',
    triage_note = :reason,
    triaged_at = :now,
    triaged_by = :actor
WHERE job_id = :job_id AND triage = 'pending';

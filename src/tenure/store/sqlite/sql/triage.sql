-- triage: what was decided about a dead letter, by whom and when.
UPDATE tenure_dead_letter
SET triage = :triage,
    triage_note = :note,
    triaged_at = :now,
    triaged_by = :actor
WHERE id = :id;

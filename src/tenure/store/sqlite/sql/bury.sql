-- bury: the dead letter, in the same transaction as the death. One row per death: a revived job may die again, under another token.
INSERT INTO tenure_dead_letter (
    id, job_id, token, queue, profile, kind, state, payload, forbidden_keys, source_ref, target_ref, payload_ref,
    idempotency_key, actor, run_id, workflow_id, attempts, crashes, failure_class, final_error, fingerprint, moved_at, moved_by
)
SELECT lower(
        hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-'
        || substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))
    ),
    j.id, j.token, j.queue, j.profile, j.kind, j.state, j.payload, j.forbidden_keys, j.source_ref, j.target_ref, j.payload_ref,
    j.idempotency_key, j.actor, j.run_id, j.workflow_id, j.attempt, j.crashes, a.failure_class,
    coalesce(nullif(trim(a.error), ''), 'No error was given.'),
    a.fingerprint, :now, coalesce(nullif(trim(a.worker), ''), 'tenure')
FROM tenure_job AS j
JOIN tenure_attempt AS a ON a.job_id = j.id AND a.token = j.token
WHERE j.id = :job_id AND j.token = :token AND j.state IN ('dead', 'failed')
ON CONFLICT (job_id, token) DO NOTHING;

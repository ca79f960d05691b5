-- effect_resolve: what a person found out about an effect. The row is taken as it stands; a result that says nothing goes.
UPDATE tenure_effect
SET state = :state,
    result = :result,
    error = :error,
    updated_at = :now
WHERE job_id = :job_id AND step = :step AND name = :name AND state <> 'confirmed';

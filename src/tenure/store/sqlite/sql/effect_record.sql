-- effect_record: a step of an effect. Its place is (job, step, name); the first record fixes args and key, later ones move the state.
-- Recording `intended` where a row stands changes nothing: the caller reads how far an earlier attempt got.
INSERT INTO tenure_effect (job_id, step, name, state, token, key, args, result, error, intended_at, updated_at)
VALUES (
    :job_id, :step, :name, :state, :token, coalesce(:key, :job_id || ':' || :step || ':' || :name),
    :args, :result, :error, :now, :now
)
ON CONFLICT (job_id, step, name) DO UPDATE
SET state = excluded.state,
    token = excluded.token,
    result = coalesce(excluded.result, result),
    error = excluded.error,
    updated_at = excluded.updated_at
WHERE excluded.state <> 'intended';

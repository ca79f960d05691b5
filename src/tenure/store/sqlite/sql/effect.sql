-- effect: the effect at one place.
SELECT job_id, step, name, state, token, key, args, result, error, intended_at, updated_at
FROM tenure_effect
WHERE job_id = ? AND step = ? AND name = ?;

-- list_attempts: {"job_id"} → its attempts that did not end well, oldest first.
CREATE OR REPLACE FUNCTION tenure.list_attempts(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(row_to_json(shown) ORDER BY shown.token), '[]')
    FROM (
        SELECT
            a.job_id,
            a.token,
            a.attempt,
            a.worker,
            tenure.to_us(a.claimed_at) AS claimed_at,
            tenure.to_us(a.ended_at) AS ended_at,
            a.outcome,
            a.failure_class,
            a.error,
            a.fingerprint,
            tenure.to_us(a.run_at) AS run_at
        FROM tenure.attempt AS a
        WHERE a.job_id = tenure.as_uuid(p_request ->> 'job_id')
    ) AS shown
$$;

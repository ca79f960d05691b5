-- count_jobs: jobs by queue, kind and state, exact at the moment of asking.
CREATE OR REPLACE FUNCTION tenure.count_jobs(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_states text[] := tenure.text_list(p_request -> 'states');
BEGIN
    RETURN (
        SELECT coalesce(json_agg(row_to_json(c) ORDER BY c.queue, c.kind, c.state), '[]')
        FROM (
            SELECT j.queue, j.kind, j.state, count(*) AS jobs, tenure.to_us(min(j.created_at)) AS oldest_at
            FROM tenure.job AS j
            WHERE (v_queues IS NULL OR j.queue = ANY (v_queues))
                AND (v_states IS NULL OR j.state = ANY (v_states))
            GROUP BY j.queue, j.kind, j.state
        ) AS c
    );
END
$$;

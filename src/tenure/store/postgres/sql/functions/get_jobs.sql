-- get_jobs: {"job_ids": [id, …]} → the jobs that are there, in no order.
CREATE OR REPLACE FUNCTION tenure.get_jobs(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(tenure.show_job(j)), '[]')
    FROM tenure.job AS j
    WHERE j.id = ANY (ARRAY(SELECT tenure.as_uuid(e.value) FROM json_array_elements_text(p_request -> 'job_ids') AS e))
$$;

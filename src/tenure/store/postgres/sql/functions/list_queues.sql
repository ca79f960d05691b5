-- list_queues: every queue, or the named ones, by name.
CREATE OR REPLACE FUNCTION tenure.list_queues(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_names text[] := tenure.text_list(p_request -> 'names');
BEGIN
    RETURN (
        SELECT coalesce(json_agg(tenure.show_queue(q) ORDER BY q.name COLLATE "C"), '[]')
        FROM tenure.queue AS q
        WHERE v_names IS NULL OR q.name = ANY (v_names)
    );
END
$$;

-- list_gates: the four global gates, which are open without a row, and every other that has one, by name.
CREATE OR REPLACE FUNCTION tenure.list_gates(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT json_agg(row_to_json(shown) ORDER BY shown.name COLLATE "C")
    FROM (
        SELECT
            coalesce(g.name, always.name) AS name,
            coalesce(g.is_open, true) AS is_open,
            tenure.to_us(g.updated_at) AS updated_at,
            g.actor
        FROM (VALUES ('master'), ('worker'), ('notify'), ('heartbeat')) AS always(name)
        FULL JOIN tenure.gate AS g ON g.name = always.name
    ) AS shown
$$;

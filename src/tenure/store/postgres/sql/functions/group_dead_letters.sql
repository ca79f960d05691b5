-- group_dead_letters: deaths that look alike, most letters first. The newest of each group is its sample.
CREATE OR REPLACE FUNCTION tenure.group_dead_letters(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_triage text[] := tenure.text_list(p_request -> 'triage');
BEGIN
    RETURN (
        SELECT coalesce(json_agg(row_to_json(g) ORDER BY g.letters DESC, g.last_at DESC, g.fingerprint), '[]')
        FROM (
            SELECT
                d.fingerprint,
                d.kind,
                d.queue,
                count(*) AS letters,
                count(*) FILTER (WHERE d.triage = 'pending') AS pending,
                tenure.to_us(min(d.moved_at)) AS first_at,
                tenure.to_us(max(d.moved_at)) AS last_at,
                (array_agg(d.final_error ORDER BY d.moved_at DESC, d.id DESC))[1] AS sample_error,
                (array_agg(d.job_id ORDER BY d.moved_at DESC, d.id DESC))[1] AS sample_job_id
            FROM tenure.dead_letter AS d
            WHERE v_triage IS NULL OR d.triage = ANY (v_triage)
            GROUP BY d.fingerprint, d.kind, d.queue
            ORDER BY letters DESC, last_at DESC, d.fingerprint
            LIMIT v_limit
        ) AS g
    );
END
$$;

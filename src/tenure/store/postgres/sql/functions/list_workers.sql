-- list_workers: every worker that has a row, most recently seen first. The leader is the owner of the named lease `leader`.
CREATE OR REPLACE FUNCTION tenure.list_workers(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
BEGIN
    RETURN (
        SELECT coalesce(json_agg(row_to_json(shown) ORDER BY shown.last_seen_at DESC, shown.id), '[]')
        FROM (
            SELECT
                w.id,
                w.hostname,
                w.pid,
                w.queues,
                w.kinds,
                w.concurrency,
                w.version,
                w.executor_kind,
                w.status,
                w.current_job_id,
                w.info,
                w.ticks,
                tenure.to_us(w.started_at) AS started_at,
                tenure.to_us(w.last_seen_at) AS last_seen_at,
                EXISTS (SELECT 1 FROM tenure.waiter AS t WHERE t.worker = w.id) AS wants_wake,
                coalesce(h.held, 0) AS held,
                l.until IS NOT NULL AS is_leader,
                tenure.to_us(l.until) AS leader_until
            FROM tenure.worker AS w
            LEFT JOIN (
                SELECT j.lease_owner, count(*) AS held
                FROM tenure.job AS j
                WHERE j.state IN ('leased', 'running')
                GROUP BY j.lease_owner
            ) AS h ON h.lease_owner = w.id
            LEFT JOIN tenure.lease AS l ON l.name = 'leader' AND l.owner = w.id AND l.until > v_now
        ) AS shown
    );
END
$$;

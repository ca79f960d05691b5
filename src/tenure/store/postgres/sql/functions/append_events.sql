-- append_events: {"job_id", "token", "events": [{"kind", "data", "job_id"}]} → whether they were written.
-- Fenced: the job's row is locked while its token and lease are judged, so a late worker writes nothing.
CREATE OR REPLACE FUNCTION tenure.append_events(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_job_id uuid := tenure.as_uuid(p_request ->> 'job_id');
    v_queue text := tenure.held_queue(v_job_id, (p_request ->> 'token')::bigint, v_now);
BEGIN
    IF v_queue IS NULL THEN
        RETURN to_json(false);
    END IF;
    INSERT INTO tenure.event (at, kind, job_id, queue, data)
    SELECT v_now, e.kind, coalesce(tenure.as_uuid(e.job_id), v_job_id), v_queue, coalesce(e.data, '{}')
    FROM json_to_recordset(p_request -> 'events') AS e(kind text, job_id text, data json);
    RETURN to_json(true);
END
$$;

-- tell: what happened to jobs that just moved, for those queues that ask for it. Runs after the move, so it tells where each stands now.
CREATE OR REPLACE FUNCTION tenure.tell(p_kind text, p_ids uuid[], p_now timestamptz) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO tenure.event (at, kind, job_id, queue, data)
    SELECT p_now, p_kind, j.id, j.queue, json_build_object(
        'state', j.state, 'attempt', j.attempt, 'token', j.token, 'kind', j.kind, 'worker', j.lease_owner,
        'class', CASE WHEN p_kind IN ('retried', 'reclaimed', 'failed', 'dead', 'cancelled') THEN j.failure_class END)
    FROM unnest(p_ids) WITH ORDINALITY AS m(id, nth)
    JOIN tenure.job AS j ON j.id = m.id
    JOIN tenure.queue AS q ON q.name = j.queue AND q.events
    ORDER BY m.nth
$$;

-- held_queue: the queue of a job that is held under this very token; null if the lease is lost. Keeps the row from changing
-- until the transaction ends.
CREATE OR REPLACE FUNCTION tenure.held_queue(p_job_id uuid, p_token bigint, p_now timestamptz) RETURNS text
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT j.queue
    FROM tenure.job AS j
    WHERE j.id = p_job_id
        AND j.token = p_token
        AND j.state IN ('leased', 'running')
        AND j.lease_until > tenure.expiry_cutoff(p_now)
    FOR SHARE
$$;

-- Reads for pages. Each looks at the newest `scan` rows, through an index, and at nothing else.

-- browse_jobs: the newest jobs that match, and how many match by the state that people see, from one look.
--
-- The look is put together from fragments, so that each question is planned for what it asks; every value travels as
-- a parameter. The rows that are counted carry no payload: only those of the page are read whole.
CREATE OR REPLACE FUNCTION tenure.browse_jobs(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_scan bigint := (p_request ->> 'scan')::bigint;
    v_states text[] := tenure.text_list(p_request -> 'states');
    v_stored text[] := tenure.text_list(p_request -> 'stored_states');
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_kinds text[] := tenure.text_list(p_request -> 'kinds');
    v_look text := 'true';
    v_wanted text := 'true';
    v_answer json;
BEGIN
    IF v_scan < 1 THEN
        RAISE EXCEPTION 'The scan must be at least 1, not %.', v_scan USING ERRCODE = 'TN007';
    END IF;
    IF p_request ->> 'parent_id' IS NOT NULL THEN
        v_look := v_look || ' AND j.parent_id = $6';
    END IF;
    IF p_request ->> 'workflow_id' IS NOT NULL THEN
        v_look := v_look || ' AND j.workflow_id = $5';
    END IF;
    IF p_request ->> 'worker' IS NOT NULL THEN
        v_look := v_look || $w$ AND j.lease_owner = $7 AND j.state IN ('leased', 'running')$w$;
    END IF;
    IF p_request ->> 'after' IS NOT NULL THEN
        v_look := v_look || ' AND j.id < $8';
    END IF;
    IF v_stored IS NOT NULL THEN
        v_wanted := v_wanted || $w$ AND (s.state = ANY ($14)
            OR ('retry_waiting' = ANY ($14) AND s.state = 'queued' AND s.attempt > 0 AND s.failure_class IS NOT NULL)
            OR ('cleaned' = ANY ($14) AND s.cleaned_at IS NOT NULL))$w$;
    END IF;
    IF v_queues IS NOT NULL THEN
        v_wanted := v_wanted || ' AND s.queue = ANY ($2)';
    END IF;
    IF v_kinds IS NOT NULL THEN
        v_wanted := v_wanted || ' AND s.kind = ANY ($3)';
    END IF;
    IF p_request ->> 'key' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND s.idempotency_key = $4';
    END IF;
    IF p_request ->> 'tenant' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND s.tenant = $9';
    END IF;
    IF p_request ->> 'since' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND s.created_at >= tenure.from_us($10)';
    END IF;
    IF p_request ->> 'error' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND strpos(lower(s.last_error), lower($11)) > 0';
    END IF;
    EXECUTE 'WITH seen AS MATERIALIZED ('
        'SELECT j.id, j.queue, j.kind, j.state, j.attempt, j.failure_class, j.cleaned_at, j.idempotency_key, j.tenant, '
        'j.created_at, ' || CASE WHEN p_request ->> 'error' IS NULL THEN 'NULL::text AS last_error' ELSE 'j.last_error' END ||
        ' FROM tenure.job AS j WHERE ' || v_look || ' ORDER BY j.id DESC LIMIT $12), '
        'matching AS MATERIALIZED (SELECT s.id, CASE WHEN s.cleaned_at IS NOT NULL THEN ''cleaned'' '
        'WHEN s.state = ''queued'' AND s.attempt > 0 AND s.failure_class IS NOT NULL THEN ''retry_waiting'' '
        'ELSE s.state END AS shown FROM seen AS s WHERE ' || v_wanted || '), '
        'chosen AS MATERIALIZED (SELECT m.id FROM matching AS m WHERE $1 IS NULL OR m.shown = ANY ($1) '
        'ORDER BY m.id DESC LIMIT $13 + 1) '
        'SELECT json_build_object('
        '''at'', tenure.to_us(tenure.now()), '
        '''items'', (SELECT coalesce(json_agg(tenure.show_job(j) ORDER BY j.id DESC), ''[]'') FROM tenure.job AS j '
        'WHERE j.id IN (SELECT c.id FROM chosen AS c)), '
        '''counts'', (SELECT coalesce(json_object_agg(m.shown, m.jobs), ''{}'') '
        'FROM (SELECT n.shown, count(*) AS jobs FROM matching AS n GROUP BY n.shown) AS m), '
        '''scanned'', (SELECT count(*) FROM seen), '
        '''last'', (SELECT s.id FROM seen AS s ORDER BY s.id LIMIT 1))'
    INTO v_answer
    USING v_states, v_queues, v_kinds, p_request ->> 'key', tenure.as_uuid(p_request ->> 'workflow_id'),
        tenure.as_uuid(p_request ->> 'parent_id'), p_request ->> 'worker', tenure.as_uuid(p_request ->> 'after'),
        p_request ->> 'tenant', (p_request ->> 'since')::bigint, p_request ->> 'error', v_scan, v_limit, v_stored;
    RETURN v_answer;
END
$$;

-- list_deaths: {"triage", "scan", "fingerprint"} → the newest dead letters of one triage, without what they carry.
CREATE OR REPLACE FUNCTION tenure.list_deaths(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_scan bigint := (p_request ->> 'scan')::bigint;
BEGIN
    IF v_scan < 1 THEN
        RAISE EXCEPTION 'The scan must be at least 1, not %.', v_scan USING ERRCODE = 'TN007';
    END IF;
    RETURN (
        SELECT coalesce(json_agg(row_to_json(shown) ORDER BY shown.moved_at DESC, shown.id DESC), '[]')
        FROM (
            SELECT
                d.id,
                d.job_id,
                d.queue,
                d.kind,
                d.failure_class,
                d.fingerprint,
                d.triage,
                d.attempts,
                tenure.to_us(d.moved_at) AS moved_at,
                tenure.to_us(d.triaged_at) AS triaged_at,
                d.triaged_by,
                d.triage_note,
                d.owner,
                left(d.final_error, 500) AS error
            FROM tenure.dead_letter AS d
            WHERE d.triage = p_request ->> 'triage'
                AND (p_request ->> 'fingerprint' IS NULL OR d.fingerprint = p_request ->> 'fingerprint')
            ORDER BY d.moved_at DESC, d.id DESC
            LIMIT v_scan
        ) AS shown
    );
END
$$;

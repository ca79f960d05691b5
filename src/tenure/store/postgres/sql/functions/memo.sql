-- Memos: values that were worked out once. tenure.store.memo says what is promised.

-- look_at_memo: how a memo stands for a job: done with its value, mine, taken; null if it is free to take.
CREATE OR REPLACE FUNCTION tenure.look_at_memo(p_memo tenure.memo, p_job_id uuid, p_now timestamptz) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT CASE
        WHEN (p_memo).id IS NULL THEN NULL
        WHEN (p_memo).state = 'done' THEN CASE WHEN (p_memo).expires_at > p_now THEN 'done' END
        WHEN (p_memo).job_id = p_job_id THEN 'mine'
        WHEN EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.id = (p_memo).job_id AND j.finished_at IS NULL) THEN 'taken'
    END
$$;

-- memo_condition: whether a job that waits for a memo may go on: it is done, or the job is to work it out, which it then owns. Not while
-- another transaction is writing the memo.
CREATE OR REPLACE FUNCTION tenure.memo_condition(p_id text, p_job_id uuid, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_memo tenure.memo;
    v_state text;
BEGIN
    SELECT * INTO v_memo FROM tenure.memo AS m WHERE m.id = p_id;
    v_state := tenure.look_at_memo(v_memo, p_job_id, p_now);
    IF v_state IS NOT NULL OR v_memo.id IS NULL OR v_memo.state = 'done' THEN
        RETURN v_state IS DISTINCT FROM 'taken';
    END IF;
    SELECT * INTO v_memo FROM tenure.memo AS m WHERE m.id = p_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_state := tenure.look_at_memo(v_memo, p_job_id, p_now);
    IF v_state IS NULL AND v_memo.state = 'open' THEN
        UPDATE tenure.memo AS m  -- the job has steps: it waits by one
        SET job_id = p_job_id,
            created_at = p_now
        WHERE m.id = p_id AND m.tenant IS NOT DISTINCT FROM (SELECT j.tenant FROM tenure.job AS j WHERE j.id = p_job_id);
    END IF;
    RETURN v_state IS DISTINCT FROM 'taken';
END
$$;

-- is_taken: whether a job that has not ended works a memo out; its end tells those who wait.
CREATE OR REPLACE FUNCTION tenure.is_taken(p_id text) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT 1 FROM tenure.memo AS m JOIN tenure.job AS j ON j.id = m.job_id AND j.finished_at IS NULL WHERE m.id = p_id AND m.state = 'open')
$$;

-- end_durable: durable jobs have ended, and their rows say so: what they still ask is void, the memos that they were to work out are for
-- others, and those who wait for their end are woken. The caller has locked the jobs.
CREATE OR REPLACE FUNCTION tenure.end_durable(p_ids uuid[], p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM tenure.void_approvals(p_ids, p_now);
    PERFORM tenure.wake_on('memo:' || m.id) FROM tenure.memo AS m WHERE m.state = 'open' AND m.job_id = ANY (p_ids);
    PERFORM tenure.wake_on(w.awaits)
    FROM unnest(p_ids) AS u(id)
    CROSS JOIN LATERAL (SELECT s.awaits FROM tenure.step AS s WHERE s.awaits = 'job:' || u.id AND s.state = 'open' LIMIT 1) AS w
    ORDER BY w.awaits;
END
$$;

-- take_memo: {"job_id", "token", "id", "name", "key", "tenant"} → [state, value as text]; null if the lease is lost.
CREATE OR REPLACE FUNCTION tenure.take_memo(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_job tenure.job := tenure.held_job(p_request, v_now);
    v_memo tenure.memo;
    v_state text;
BEGIN
    IF v_job.id IS NULL THEN
        RETURN NULL;
    END IF;
    IF coalesce(p_request ->> 'id' !~ '^[0-9a-f]{64}$', true)
        OR coalesce(btrim(p_request ->> 'name'), '') = '' OR length(p_request ->> 'name') > 300
        OR coalesce(btrim(p_request ->> 'key'), '') = '' OR length(p_request ->> 'key') > 300
    THEN
        RAISE EXCEPTION 'A memo needs the SHA-256 of tenant, name and key as its id, and a name and a key of 1 to 300 characters. Nothing was taken.'
            USING ERRCODE = 'TN007';
    END IF;
    INSERT INTO tenure.memo (id, name, key, tenant, state, job_id, created_at)
    VALUES (p_request ->> 'id', p_request ->> 'name', p_request ->> 'key', p_request ->> 'tenant', 'open', v_job.id, v_now)
    ON CONFLICT (id) DO NOTHING;
    SELECT * INTO v_memo FROM tenure.memo AS m WHERE m.id = p_request ->> 'id' FOR UPDATE;
    IF v_memo.tenant IS DISTINCT FROM v_job.tenant OR v_job.tenant IS DISTINCT FROM p_request ->> 'tenant' THEN
        RAISE EXCEPTION 'Job % may not take this memo: a memo is of the tenant of the jobs that take it. Nothing was taken.', v_job.id
            USING ERRCODE = 'TN007';
    END IF;
    v_state := tenure.look_at_memo(v_memo, v_job.id, v_now);
    IF v_state IS NULL THEN
        UPDATE tenure.memo AS m
        SET state = 'open',
            job_id = v_job.id,
            value = NULL,
            created_at = v_now,
            expires_at = NULL
        WHERE m.id = v_memo.id;
        v_state := 'mine';
    END IF;
    IF v_state = 'mine' THEN
        PERFORM tenure.note_steps(v_job, 1);  -- its end looks for what it owns
    END IF;
    RETURN json_build_array(v_state, CASE WHEN v_state = 'done' THEN v_memo.value::text END);
END
$$;

-- keep_memo: {"job_id", "token", "id", "value", "ttl_seconds"} → [state, value as text]; null if the lease is lost.
CREATE OR REPLACE FUNCTION tenure.keep_memo(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_job tenure.job := tenure.held_job(p_request, v_now);
    v_value json;
BEGIN
    IF v_job.id IS NULL THEN
        RETURN NULL;
    END IF;
    IF p_request -> 'value' IS NULL OR octet_length((p_request -> 'value')::text) > 1048576 THEN
        RAISE EXCEPTION 'A memo keeps a JSON value of up to 1,048,576 bytes. Nothing was kept.' USING ERRCODE = 'TN007';
    ELSIF coalesce(NOT ((p_request ->> 'ttl_seconds')::double precision > 0 AND (p_request ->> 'ttl_seconds')::double precision <= 315360000), true) THEN
        RAISE EXCEPTION 'A memo is kept for more than 0 and up to 315,360,000 s (ten years), not % s. Nothing was kept.', p_request ->> 'ttl_seconds'
            USING ERRCODE = 'TN007';
    END IF;
    UPDATE tenure.memo AS m
    SET state = 'done',
        value = p_request -> 'value',
        expires_at = v_now + (p_request ->> 'ttl_seconds')::double precision * interval '1 second'
    WHERE m.id = p_request ->> 'id' AND m.job_id = v_job.id AND m.state = 'open';
    IF FOUND THEN
        PERFORM tenure.wake_on('memo:' || (p_request ->> 'id'));
    END IF;
    SELECT m.value INTO v_value FROM tenure.memo AS m WHERE m.id = p_request ->> 'id' AND m.state = 'done' AND m.expires_at > v_now;
    RETURN json_build_array('done', coalesce(v_value, p_request -> 'value')::text);
END
$$;

-- memo_span: the memos that a request names lie behind `after` (name, key, id) and up to `until` (name, key).
CREATE OR REPLACE FUNCTION tenure.memo_span(p_request json, OUT after text[], OUT until text[])
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    v_name text := p_request ->> 'name';
    v_key text := p_request ->> 'key';
    v_prefix text := p_request ->> 'prefix';
    v_last text := chr(1114111);  -- behind every text in the order of names and keys
BEGIN
    IF v_key IS NOT NULL AND v_prefix IS NOT NULL THEN
        RAISE EXCEPTION 'Memos are chosen by a key or by the beginning of keys, not by both. Leave one out.' USING ERRCODE = 'TN007';
    ELSIF v_name IS NULL AND num_nonnulls(v_key, v_prefix) > 0 THEN
        RAISE EXCEPTION 'A key belongs to a name, and none is given. Name the memo as well.' USING ERRCODE = 'TN007';
    END IF;
    after := coalesce(tenure.text_list(p_request -> 'after'), ARRAY[coalesce(v_name, ''), coalesce(v_key, v_prefix, ''), '']);
    until := ARRAY[coalesce(v_name, v_last), coalesce(v_key, coalesce(v_prefix, '') || v_last)];
END
$$;

-- list_memos: {"name", "key", "prefix", "tenant", "after": [name, key, id], "limit"} → {"memos": [[id, name, key, tenant, state, job_id, size,
-- preview, created_at, expires_at], …], "next": [name, key, id]}.
CREATE OR REPLACE FUNCTION tenure.list_memos(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_limit bigint := tenure.page_limit(p_request);
    v_span record := tenure.memo_span(p_request);
    v_tenant text := p_request ->> 'tenant';
BEGIN
    RETURN (
        SELECT json_build_object(
            'memos', coalesce(json_agg(json_build_array(
                s.id, s.name, s.key, s.tenant, s.state, s.job_id, coalesce(octet_length(s.value::text), 0), coalesce(left(s.value::text, 200), ''),
                tenure.to_us(s.created_at), tenure.to_us(s.expires_at)) ORDER BY s.name, s.key, s.id)
                FILTER (WHERE coalesce(s.expires_at > v_now, true) AND (v_tenant IS NULL OR s.tenant = v_tenant)), '[]'),
            'next', CASE WHEN count(*) = v_limit THEN (array_agg(json_build_array(s.name, s.key, s.id) ORDER BY s.name DESC, s.key DESC, s.id DESC))[1] END)
        FROM (
            SELECT m.*
            FROM tenure.memo AS m
            WHERE (m.name, m.key, m.id) > (v_span.after[1], v_span.after[2], v_span.after[3])
                AND (m.name, m.key) <= (v_span.until[1], v_span.until[2])
            ORDER BY m.name, m.key, m.id
            LIMIT v_limit
        ) AS s
    );
END
$$;

-- forget_memos: {"ids"} or {"name", "key", "prefix", "after", "limit"}, and {"tenant", "actor", "reason"} → {"memos": how many went, "next"}.
CREATE OR REPLACE FUNCTION tenure.forget_memos(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_span record := tenure.memo_span(p_request);
    v_ids text[] := tenure.text_list(p_request -> 'ids');
    v_tenant text := p_request ->> 'tenant';
    v_open text[];
    v_gone integer;
    v_next json;
BEGIN
    IF num_nonnulls(v_ids, p_request ->> 'name') <> 1 THEN
        RAISE EXCEPTION 'Which memos? It is not clear, because % are given. Nothing was forgotten.',
            CASE WHEN v_ids IS NULL THEN 'neither ids nor a name' ELSE 'both ids and a name' END USING ERRCODE = 'TN007';
    END IF;
    IF v_ids IS NULL THEN
        v_ids := ARRAY(
            SELECT m.id
            FROM tenure.memo AS m
            WHERE (m.name, m.key, m.id) > (v_span.after[1], v_span.after[2], v_span.after[3])
                AND (m.name, m.key) <= (v_span.until[1], v_span.until[2])
            ORDER BY m.name, m.key, m.id
            LIMIT v_limit
            FOR UPDATE
        );
        IF cardinality(v_ids) = v_limit THEN
            SELECT json_build_array(m.name, m.key, m.id) INTO v_next FROM tenure.memo AS m WHERE m.id = v_ids[v_limit];
        END IF;
    END IF;
    WITH gone AS (
        DELETE FROM tenure.memo AS m WHERE m.id = ANY (v_ids) AND (v_tenant IS NULL OR m.tenant = v_tenant) RETURNING m.id, m.state
    )
    SELECT count(*), array_agg(g.id ORDER BY g.id) FILTER (WHERE g.state = 'open') INTO v_gone, v_open FROM gone AS g;
    PERFORM tenure.wake_on('memo:' || o.id) FROM unnest(v_open) AS o(id);  -- one of those that wait works it out
    IF v_gone > 0 THEN
        PERFORM tenure.write_audit(
            tenure.now(), p_request ->> 'actor', 'forget_memos', coalesce(p_request ->> 'name', 'memo'), p_request ->> 'reason',
            json_strip_nulls(json_build_object(
                'ids', tenure.text_list(p_request -> 'ids'), 'key', p_request ->> 'key', 'prefix', p_request ->> 'prefix', 'tenant', v_tenant,
                'memos', v_gone)));
    END IF;
    RETURN json_build_object('memos', v_gone, 'next', v_next);
END
$$;

-- prune_memos: forget values whose time is over, and memos that were given up. Answers how many went.
CREATE OR REPLACE FUNCTION tenure.prune_memos(p_limit bigint, p_now timestamptz) RETURNS bigint
LANGUAGE sql
AS $$
    WITH gone AS (
        DELETE FROM tenure.memo AS m
        WHERE m.id IN (
            SELECT o.id FROM tenure.memo AS o
            WHERE o.expires_at <= p_now OR o.state = 'open' AND o.created_at <= p_now - interval '1 day'
                AND NOT EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.id = o.job_id AND j.finished_at IS NULL)
            LIMIT p_limit
            FOR UPDATE SKIP LOCKED)
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;

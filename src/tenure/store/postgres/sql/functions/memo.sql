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

-- memo_condition: whether a job that waits for a memo may go on: it is done, or the job is to work it out, which it then owns. A memo that
-- another transaction is writing is looked at again by the next sweep.
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
        UPDATE tenure.memo AS m SET job_id = p_job_id, created_at = p_now WHERE m.id = p_id;  -- it has steps: it waits by one
    END IF;
    RETURN v_state IS DISTINCT FROM 'taken';
END
$$;

-- end_durable: durable jobs have ended, and their rows say so: what they still ask is void, and the memos that they were to work out are for
-- others. The caller has locked the jobs.
CREATE OR REPLACE FUNCTION tenure.end_durable(p_ids uuid[], p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM tenure.void_approvals(p_ids, p_now);
    PERFORM tenure.wake_on('memo:' || m.id) FROM tenure.memo AS m WHERE m.state = 'open' AND m.job_id = ANY (p_ids);
END
$$;

-- take_memo: {"job_id", "token", "id", "name", "tenant"} → [state, value as text]; null if the lease is lost.
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
    IF p_request ->> 'id' !~ '^[0-9a-f]{64}$' OR coalesce(btrim(p_request ->> 'name'), '') = '' THEN
        RAISE EXCEPTION 'A memo needs the SHA-256 of tenant, name and key as its id, and a name. Nothing was taken.' USING ERRCODE = 'TN007';
    END IF;
    INSERT INTO tenure.memo (id, name, tenant, state, job_id, created_at)
    VALUES (p_request ->> 'id', p_request ->> 'name', p_request ->> 'tenant', 'open', v_job.id, v_now)
    ON CONFLICT (id) DO NOTHING;
    SELECT * INTO v_memo FROM tenure.memo AS m WHERE m.id = p_request ->> 'id' FOR UPDATE;
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

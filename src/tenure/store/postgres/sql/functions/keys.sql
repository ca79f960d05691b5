-- Keys and ranks: how a slot, a hash and a rank are made. The SQLite engine makes them by the same rules.
-- A slot gives the length of its kind, so that no kind and key can be read as another kind and key.

CREATE OR REPLACE FUNCTION tenure.slot_of(p_scope text, p_space text, p_profile text, p_kind text, p_key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_scope = 'none' THEN NULL
        ELSE left(p_scope, 1) || '|' || p_profile || chr(31)
            || CASE p_space WHEN 'kind' THEN length(p_kind) || chr(31) || p_kind ELSE '' END || chr(31) || p_key
    END
$$;

CREATE OR REPLACE FUNCTION tenure.payload_hash(p_payload json) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT encode(sha256(convert_to(p_payload::jsonb::text, 'UTF8')), 'hex') $$;

CREATE OR REPLACE FUNCTION tenure.rank_of(p_priority integer, p_order text, p_aging double precision, p_now timestamptz) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN p_aging IS NULL
        THEN CASE p_order WHEN 'high' THEN -p_priority::bigint ELSE p_priority::bigint END
        ELSE (CASE p_order WHEN 'high' THEN -p_priority ELSE p_priority END * p_aging * 1000000)::bigint + tenure.to_us(p_now)
    END
$$;

-- open_queue: the queue's row, once its gates let `p_act` pass. Refuses an unknown queue with what is known.
CREATE OR REPLACE FUNCTION tenure.open_queue(p_name text, p_act text) RETURNS tenure.queue
LANGUAGE plpgsql
AS $$
DECLARE
    v_queue tenure.queue;
    v_gate text;
BEGIN
    SELECT * INTO v_queue FROM tenure.queue AS q WHERE q.name = p_name;
    IF NOT FOUND THEN
        PERFORM tenure.refuse_unknown_queue(p_name);
    END IF;
    SELECT g.name INTO v_gate
    FROM tenure.gate AS g
    WHERE NOT g.is_open AND g.name IN ('master', v_queue.profile || '.master', 'queue:' || p_name)
    ORDER BY g.name
    LIMIT 1;
    IF FOUND THEN
        PERFORM tenure.refuse_gate(v_gate, p_act);
    END IF;
    RETURN v_queue;
END
$$;

CREATE OR REPLACE FUNCTION tenure.refuse_unknown_queue(p_name text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'Queue % does not exist.', quote_literal(p_name) USING
        ERRCODE = 'TN003',
        DETAIL = json_build_object('queue', p_name, 'known', (SELECT coalesce(json_agg(n.name), '[]')
            FROM (SELECT q.name FROM tenure.queue AS q ORDER BY q.name LIMIT 200) AS n))::text;
END
$$;

CREATE OR REPLACE FUNCTION tenure.refuse_gate(p_gate text, p_act text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'Gate % is closed, so % is refused and nothing was changed.', quote_literal(p_gate), p_act USING
        ERRCODE = 'TN002', DETAIL = json_build_object('gate', p_gate, 'act', p_act)::text;
END
$$;

CREATE OR REPLACE FUNCTION tenure.refuse_forbidden_keys(p_jobs json, p_queue tenure.queue) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_job uuid;
BEGIN
    SELECT g.i INTO v_job
    FROM json_to_recordset(p_jobs) AS g(i uuid, p json)
    WHERE tenure.has_key(g.p::jsonb, p_queue.forbidden_keys)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'Job %: its payload carries a key that queue % forbids (%). Nothing was enqueued. Pass a reference instead.',
            v_job, quote_literal(p_queue.name), array_to_string(p_queue.forbidden_keys, ', ') USING ERRCODE = 'TN006';
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION tenure.refuse_missing_keys(p_jobs json, p_queue tenure.queue) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_job uuid;
BEGIN
    SELECT g.i INTO v_job FROM json_to_recordset(p_jobs) AS g(i uuid, k text) WHERE coalesce(g.k, '') = '' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'Job %: queue % asks for an idempotency key and none was given. Nothing was enqueued. Pass key=….',
            v_job, quote_literal(p_queue.name) USING ERRCODE = 'TN005';
    END IF;
END
$$;

-- notify: wake whoever waits for the queue. A hint: coalesced per transaction, sent only if somebody wants it.
CREATE OR REPLACE FUNCTION tenure.notify(p_queue tenure.queue, p_when text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF (p_when = 'always' OR EXISTS (SELECT 1 FROM tenure.waiter AS w WHERE w.queue = p_queue.name))
        AND NOT EXISTS (
            SELECT 1 FROM tenure.gate AS g WHERE NOT g.is_open AND g.name IN ('notify', p_queue.profile || '.notify')
        )
    THEN
        PERFORM pg_notify('tenure', p_queue.name);
    END IF;
END
$$;

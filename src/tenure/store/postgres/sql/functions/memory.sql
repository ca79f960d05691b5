-- Agent events, memories, and the searches over them.

-- make_embedding_queue: the queue in which agent events are embedded, unless it is there. tenure.store.memory has the same settings.
CREATE OR REPLACE FUNCTION tenure.make_embedding_queue(p_actor text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.name = 'embedding') THEN
        PERFORM tenure.set_queues(json_build_object('only_new', true, 'actor', p_actor, 'policies', json_build_object(
            'embedding', json_build_object('priority_order', 'low', 'priority_default', 3, 'max_attempts', 5, 'retain_seconds', 86400.0))));
    END IF;
END
$$;

-- keep_agent_events: what agents did with jobs that just ended, for those queues that keep it, and the jobs that embed it. In the
-- transaction of the end itself: a worker that knows nothing of agents, psql alone, gets it too. Facts only: texts stay with the job.
CREATE OR REPLACE FUNCTION tenure.keep_agent_events(p_kind text, p_ids uuid[], p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_jobs json;
BEGIN
    WITH made AS (
        INSERT INTO tenure.agent_event (at, agent, kind, job_id, workflow_id, tenant, data)
        SELECT p_now, j.queue, p_kind, j.id, j.workflow_id, j.tenant, json_strip_nulls(json_build_object(
            'task', j.kind,
            'attempt', j.attempt,
            'token', j.token,
            'class', CASE WHEN p_kind <> 'completed' THEN j.failure_class END,
            'seconds', extract(epoch FROM p_now - j.claimed_at)::double precision,
            'cost_usd', CASE WHEN json_typeof(j.result) = 'object' AND json_typeof(j.result -> 'costUsd') = 'number' THEN j.result -> 'costUsd' END))
        FROM unnest(p_ids) WITH ORDINALITY AS m(id, nth)
        JOIN tenure.job AS j ON j.id BETWEEN m.id AND m.id
        JOIN tenure.queue AS q ON q.name = j.queue AND (q.agent_events = 'ends' OR q.agent_events = 'completed' AND p_kind = 'completed')
        ORDER BY m.nth
        RETURNING id, job_id, tenant, data ->> 'token' AS token
    )
    SELECT json_agg(json_build_array(m.id, m.tenant, format('%s:%s:%s', m.job_id, m.token, p_kind)) ORDER BY m.id) INTO v_jobs FROM made AS m;
    IF v_jobs IS NOT NULL THEN
        PERFORM tenure.put_embedding_jobs(v_jobs, p_now);
    END IF;
END
$$;

-- put_embedding_jobs: [[event id, tenant, what the job's id is made from], …]. No gate is asked: they belong to the end of a job.
CREATE OR REPLACE FUNCTION tenure.put_embedding_jobs(p_events json, p_now timestamptz) RETURNS void
LANGUAGE sql
AS $$
    SELECT tenure.put_jobs(json_build_array(json_build_object('queue', 'embedding', 'kind', 'embedding', 'jobs', (
        SELECT json_agg(json_build_object(
            'i', tenure.embedding_id(p_now, e.value ->> 2),
            'p', ('{"agent_event_id": ' || (e.value ->> 0) || '}')::json,  -- spelled as SQLite spells it
            'k', e.value ->> 0,
            'x', json_strip_nulls(json_build_object('tenant', e.value ->> 1))))
        FROM json_array_elements(p_events) AS e))), false)
$$;

-- embedding_id: the id of an embedding job, a UUIDv7 that follows from the time and the seed. tenure.store.sqlite.memory makes the same.
CREATE OR REPLACE FUNCTION tenure.embedding_id(p_now timestamptz, p_seed text) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT (lpad(to_hex(tenure.to_us(p_now) / 1000), 12, '0') || '7' || substr(s.hex, 1, 3) || '8' || substr(s.hex, 4, 15))::uuid
    FROM (SELECT md5(p_seed) AS hex) AS s
$$;

-- write_agent_events: {"events": [{"agent", "kind", "data", "job_id", "workflow_id", "tenant", "key"}]} → their ids, in order. An event
-- whose key is there is not written again. An event may name a job that the caller may read: read_events gives it with what that job carries.
CREATE OR REPLACE FUNCTION tenure.write_agent_events(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_event record;
    v_id bigint;
    v_ids bigint[] := '{}';
    v_jobs json[] := '{}';
BEGIN
    PERFORM tenure.make_embedding_queue('tenure');
    FOR v_event IN
        SELECT e.* FROM json_to_recordset(p_request -> 'events')
            AS e(agent text, kind text, data json, job_id uuid, workflow_id uuid, tenant text, key text)
    LOOP
        IF v_event.job_id IS NOT NULL AND NOT tenure.sees_job(v_event.job_id) THEN
            RAISE EXCEPTION 'An agent event may not name job %: it is not there, or this login neither enqueued nor claimed it. Nothing was written.',
                v_event.job_id USING ERRCODE = 'TN010', HINT = 'Leave job_id out, or write the event while the job is held.';
        END IF;
        INSERT INTO tenure.agent_event (at, agent, kind, job_id, workflow_id, tenant, key, data)
        VALUES (v_now, v_event.agent, v_event.kind, v_event.job_id, v_event.workflow_id, v_event.tenant, v_event.key, coalesce(v_event.data, '{}'))
        ON CONFLICT (key) DO NOTHING
        RETURNING id INTO v_id;
        IF FOUND THEN
            v_jobs := v_jobs || json_build_array(v_id, v_event.tenant, 'event:' || v_id);
        ELSE
            SELECT e.id INTO STRICT v_id FROM tenure.agent_event AS e WHERE e.key = v_event.key;
        END IF;
        v_ids := v_ids || v_id;
    END LOOP;
    IF cardinality(v_jobs) > 0 THEN
        PERFORM tenure.put_embedding_jobs(array_to_json(v_jobs), v_now);
    END IF;
    RETURN array_to_json(v_ids);
END
$$;

-- show_agent_event: an event as JSON.
CREATE OR REPLACE FUNCTION tenure.show_agent_event(p_event tenure.agent_event) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object('id', (p_event).id, 'at', tenure.to_us((p_event).at), 'agent', (p_event).agent, 'kind', (p_event).kind,
        'job_id', (p_event).job_id, 'workflow_id', (p_event).workflow_id, 'tenant', (p_event).tenant, 'key', (p_event).key,
        'data', tenure.readable((p_event).data))
$$;

-- list_agent_events: {"agents", "kinds", "job_id", "before", "limit"} → events, newest first.
CREATE OR REPLACE FUNCTION tenure.list_agent_events(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_agents text[] := tenure.text_list(p_request -> 'agents');
    v_kinds text[] := tenure.text_list(p_request -> 'kinds');
    v_job uuid := tenure.as_uuid(p_request ->> 'job_id');
    v_before bigint := (p_request ->> 'before')::bigint;
BEGIN
    RETURN (
        SELECT coalesce(json_agg(tenure.show_agent_event(e) ORDER BY e.id DESC), '[]')
        FROM (
            SELECT * FROM tenure.agent_event AS a
            WHERE (v_agents IS NULL OR a.agent = ANY (v_agents)) AND (v_kinds IS NULL OR a.kind = ANY (v_kinds))
                AND (p_request ->> 'job_id' IS NULL OR a.job_id = v_job) AND (v_before IS NULL OR a.id < v_before)
            ORDER BY a.id DESC
            LIMIT tenure.page_limit(p_request)
        ) AS e
    );
END
$$;

-- read_events: {"ids": [event id, …]} → [[event, job's kind, payload, result, result_summary, last_error], …], by id.
CREATE OR REPLACE FUNCTION tenure.read_events(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(json_build_array(
        tenure.show_agent_event(e), j.kind, tenure.readable(j.payload), tenure.readable(j.result), j.result_summary, j.last_error)
        ORDER BY e.id), '[]')
    FROM json_array_elements_text(p_request -> 'ids') AS g(id)
    JOIN tenure.agent_event AS e ON e.id = g.id::bigint
    LEFT JOIN tenure.job AS j ON j.id = e.job_id
$$;

-- list_unremembered: {"after", "limit"} → ids of events without a memory, among the next so many.
CREATE OR REPLACE FUNCTION tenure.list_unremembered(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(e.id ORDER BY e.id), '[]')
    FROM (
        SELECT a.id FROM tenure.agent_event AS a WHERE a.id > coalesce((p_request ->> 'after')::bigint, 0)
        ORDER BY a.id
        LIMIT tenure.page_limit(p_request)
    ) AS e
    WHERE NOT EXISTS (SELECT 1 FROM tenure.memory AS m WHERE m.agent_event_id = e.id)
$$;

-- write_memories: {"memories": [{"id", "agent", "kind", "text", "text_hash", "model", "vector": [float, …], "tenant", "agent_event_id",
-- "job_id", "workflow_id", "meta", "at", "ttl_seconds"}]} → how many were written. One per id and one per agent event: where one is there
-- with the same text and model nothing is changed, otherwise text, model and vector are replaced.
CREATE OR REPLACE FUNCTION tenure.write_memories(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_new record;
    v_written integer := 0;
BEGIN
    FOR v_new IN
        SELECT g.* FROM json_to_recordset(p_request -> 'memories') AS g(
            id uuid, agent text, kind text, text text, text_hash text, model text, vector real[], tenant text, agent_event_id bigint,
            job_id uuid, workflow_id uuid, meta json, at bigint, ttl_seconds double precision)
        ORDER BY g.agent_event_id, g.id
    LOOP
        INSERT INTO tenure.memory AS m (
            id, tenant, agent, kind, agent_event_id, job_id, workflow_id, text, text_hash, model, dim, vec, meta, at, expires_at
        )
        VALUES (
            v_new.id, v_new.tenant, v_new.agent, v_new.kind, v_new.agent_event_id, v_new.job_id, v_new.workflow_id, v_new.text, v_new.text_hash,
            v_new.model, cardinality(v_new.vector), v_new.vector, coalesce(v_new.meta, '{}'),
            coalesce(tenure.from_us(v_new.at), v_now), v_now + v_new.ttl_seconds * interval '1 second'
        )
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            UPDATE tenure.memory AS m
            SET text = v_new.text,
                text_hash = v_new.text_hash,
                model = v_new.model,
                dim = cardinality(v_new.vector),
                vec = v_new.vector,
                xid = pg_current_xact_id()
            WHERE (m.id = v_new.id OR m.agent_event_id = v_new.agent_event_id)
                AND (m.text_hash, m.model) IS DISTINCT FROM (v_new.text_hash, v_new.model);
        END IF;
        IF FOUND THEN
            v_written := v_written + 1;
        END IF;
    END LOOP;
    RETURN to_json(v_written);
END
$$;

-- find_words: {"words": [word, …], "scope": {"agents", "kinds", "tenant"}, "limit"} → ids, best first. A memory's score is the sum over
-- the words it has of ln(1 + all memories / memories with that word): PostgreSQL's own ranks do not know which words are rare.
-- Of a word that more than 5,000 memories have, 5,000 are looked at: it says little.
CREATE OR REPLACE FUNCTION tenure.find_words(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_agents text[] := tenure.text_list(p_request -> 'scope' -> 'agents');
    v_kinds text[] := tenure.text_list(p_request -> 'scope' -> 'kinds');
    v_tenant text := p_request -> 'scope' ->> 'tenant';
    v_asked text := array_to_string(tenure.text_list(p_request -> 'words'), ' ');
    v_words text[] := tsvector_to_array(tenure.words_of(coalesce(v_asked, '')));
    v_all double precision := (SELECT greatest(c.reltuples, 0) FROM pg_class AS c WHERE c.oid = 'tenure.memory'::regclass);
BEGIN
    IF v_all < 100000 THEN
        v_all := (SELECT count(*) FROM tenure.memory);
    END IF;
    RETURN (
        WITH hit AS MATERIALIZED (
            SELECT w.word, f.id
            FROM unnest(v_words) AS w(word)
            CROSS JOIN LATERAL (
                SELECT m.id
                FROM tenure.memory AS m
                WHERE tenure.words_of(m.text) @@ quote_literal(w.word)::tsquery
                    AND (v_agents IS NULL OR m.agent = ANY (v_agents)) AND (v_kinds IS NULL OR m.kind = ANY (v_kinds))
                    AND (v_tenant IS NULL OR m.tenant = v_tenant) AND (m.expires_at IS NULL OR m.expires_at > v_now)
                LIMIT 5000
            ) AS f
        ), weight AS (
            SELECT h.word, ln(1 + v_all / count(*)) AS weight FROM hit AS h GROUP BY h.word
        ), best AS (
            SELECT h.id, sum(w.weight) AS score
            FROM hit AS h
            JOIN weight AS w ON w.word = h.word
            GROUP BY h.id
            ORDER BY 2 DESC, 1 DESC
            LIMIT tenure.page_limit(p_request)
        )
        SELECT coalesce(json_agg(b.id ORDER BY b.score DESC, b.id DESC), '[]') FROM best AS b
    );
END
$$;

-- vector_schema: where the extension `vector` lives in this database; null if it is not installed.
CREATE OR REPLACE FUNCTION tenure.vector_schema() RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT n.nspname::text FROM pg_catalog.pg_extension AS e JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace WHERE e.extname = 'vector'
$$;

-- find_near: {"model", "vector": [float, …], "scope", "limit"} → ids, nearest first by cosine; null without the extension `vector`.
CREATE OR REPLACE FUNCTION tenure.find_near(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_schema text := tenure.vector_schema();
    v_found json;
BEGIN
    IF v_schema IS NULL THEN
        RETURN NULL;
    END IF;
    EXECUTE format(
        $near$
            SELECT coalesce(json_agg(f.id ORDER BY f.distance, f.id), '[]')
            FROM (
                SELECT m.id, m.vec::%1$I.vector OPERATOR(%1$I.<=>) $1::%1$I.vector AS distance
                FROM tenure.memory AS m
                WHERE m.model = $2 AND m.dim = json_array_length($1::json)
                    AND ($3 IS NULL OR m.agent = ANY ($3)) AND ($4 IS NULL OR m.kind = ANY ($4))
                    AND ($5 IS NULL OR m.tenant = $5) AND (m.expires_at IS NULL OR m.expires_at > $6)
                ORDER BY distance
                LIMIT $7
            ) AS f
        $near$, v_schema)
    INTO v_found
    USING (p_request -> 'vector')::text, p_request ->> 'model', tenure.text_list(p_request -> 'scope' -> 'agents'),
        tenure.text_list(p_request -> 'scope' -> 'kinds'), p_request -> 'scope' ->> 'tenant', tenure.now(), tenure.page_limit(p_request);
    RETURN v_found;
END
$$;

-- list_vectors: vectors whose time is not over. {"model", "after", "limit"} → {"rows": [[id, agent, kind, tenant, array_send of the vector in base64], …], "mark", "more"}.
-- A mark is "from/last id/next": pages go on behind the last id among what transactions from `from` on wrote; the reading after the last
-- page begins at `next`, the oldest transaction that was still running when the first page was read.
CREATE OR REPLACE FUNCTION tenure.list_vectors(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_from xid8 := coalesce(nullif(split_part(p_request ->> 'after', '/', 1), ''), '0')::xid8;
    v_last uuid := nullif(split_part(p_request ->> 'after', '/', 2), '')::uuid;
    v_next text := coalesce(nullif(split_part(p_request ->> 'after', '/', 3), ''), pg_snapshot_xmin(pg_current_snapshot())::text);
    v_rows json;
    v_count bigint;
    v_top text;
BEGIN
    SELECT coalesce(json_agg(json_build_array(v.id, v.agent, v.kind, v.tenant, encode(array_send(v.vec), 'base64')) ORDER BY v.id), '[]'),
        count(*), max(v.id::text COLLATE "C")
    INTO v_rows, v_count, v_top
    FROM (
        SELECT m.id, m.agent, m.kind, m.tenant, m.vec
        FROM tenure.memory AS m
        WHERE m.model = p_request ->> 'model' AND m.model IS NOT NULL AND m.xid >= v_from AND (v_last IS NULL OR m.id > v_last)
            AND (m.expires_at IS NULL OR m.expires_at > tenure.now())
        ORDER BY m.id
        LIMIT v_limit
    ) AS v;
    RETURN json_build_object('rows', v_rows, 'more', v_count >= v_limit,
        'mark', CASE WHEN v_count >= v_limit THEN v_from::text || '/' || v_top || '/' || v_next ELSE v_next || '//' END);
END
$$;

-- show_memory: a memory as JSON, without its vector.
CREATE OR REPLACE FUNCTION tenure.show_memory(p_memory tenure.memory) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object('id', (p_memory).id, 'at', tenure.to_us((p_memory).at), 'agent', (p_memory).agent, 'kind', (p_memory).kind,
        'text', (p_memory).text, 'model', (p_memory).model, 'tenant', (p_memory).tenant, 'agent_event_id', (p_memory).agent_event_id,
        'job_id', (p_memory).job_id, 'workflow_id', (p_memory).workflow_id, 'meta', tenure.readable((p_memory).meta),
        'expires_at', tenure.to_us((p_memory).expires_at))
$$;

-- get_memories: {"ids"} → the memories that are there and have not expired, in no order.
CREATE OR REPLACE FUNCTION tenure.get_memories(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(tenure.show_memory(m)), '[]')
    FROM tenure.memory AS m
    WHERE m.id IN (SELECT tenure.as_uuid(g.id) FROM json_array_elements_text(p_request -> 'ids') AS g(id))
        AND (m.expires_at IS NULL OR m.expires_at > tenure.now())
$$;

-- list_memories: {"model", "after", "limit"} → memories that another model embedded, or none, by rising id.
CREATE OR REPLACE FUNCTION tenure.list_memories(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(tenure.show_memory(m) ORDER BY m.id), '[]')
    FROM (
        SELECT * FROM tenure.memory AS t
        WHERE t.model IS DISTINCT FROM p_request ->> 'model'
            AND (p_request ->> 'after' IS NULL OR t.id > (p_request ->> 'after')::uuid)
            AND (t.expires_at IS NULL OR t.expires_at > tenure.now())
        ORDER BY t.id
        LIMIT tenure.page_limit(p_request)
    ) AS m
$$;

-- forget_memories: {"ids", "agents", "kinds", "tenant", "before", "everything", "limit", "actor", "reason"} → how many went.
CREATE OR REPLACE FUNCTION tenure.forget_memories(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_ids text[] := tenure.text_list(p_request -> 'ids');
    v_agents text[] := tenure.text_list(p_request -> 'agents');
    v_kinds text[] := tenure.text_list(p_request -> 'kinds');
    v_tenant text := p_request ->> 'tenant';
    v_before timestamptz := tenure.from_us((p_request ->> 'before')::bigint);
    v_gone integer;
BEGIN
    IF num_nonnulls(v_ids, v_agents, v_kinds, v_tenant, v_before) = 0 AND NOT coalesce((p_request ->> 'everything')::boolean, false) THEN
        RAISE EXCEPTION 'Which memories? Name ids, agents, kinds, a tenant or a time, or say that all go. Nothing was forgotten.'
            USING ERRCODE = 'TN007';
    END IF;
    DELETE FROM tenure.memory AS m
    WHERE m.id IN (
        SELECT t.id
        FROM tenure.memory AS t
        WHERE (v_ids IS NULL OR t.id IN (SELECT tenure.as_uuid(g.id) FROM unnest(v_ids) AS g(id)))
            AND (v_agents IS NULL OR t.agent = ANY (v_agents)) AND (v_kinds IS NULL OR t.kind = ANY (v_kinds))
            AND (v_tenant IS NULL OR t.tenant = v_tenant) AND (v_before IS NULL OR t.at < v_before)
        LIMIT tenure.page_limit(p_request)
        FOR UPDATE SKIP LOCKED
    );
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    IF v_gone > 0 THEN
        PERFORM tenure.write_audit(tenure.now(), p_request ->> 'actor', 'forget_memories', 'memory', p_request ->> 'reason',
            json_strip_nulls(json_build_object('ids', v_ids, 'agents', v_agents, 'kinds', v_kinds, 'tenant', v_tenant,
                'before', tenure.to_us(v_before), 'memories', v_gone)));
    END IF;
    RETURN to_json(v_gone);
END
$$;

-- expire_memories: remove memories whose time is over, up to p_limit. Answers how many went.
CREATE OR REPLACE FUNCTION tenure.expire_memories(p_limit bigint, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_gone bigint;
BEGIN
    DELETE FROM tenure.memory AS m
    WHERE m.id IN (SELECT t.id FROM tenure.memory AS t WHERE t.expires_at <= p_now ORDER BY t.expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    RETURN v_gone;
END
$$;

-- count_memories: {} → {"counts": [[agent, model, memories, oldest, newest], …], "events", "unremembered", "compares_vectors"}.
CREATE OR REPLACE FUNCTION tenure.count_memories(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT json_build_object(
        'counts', (
            SELECT coalesce(json_agg(json_build_array(c.agent, c.model, c.memories, tenure.to_us(c.oldest), tenure.to_us(c.newest))
                ORDER BY c.agent COLLATE "C", c.model COLLATE "C" NULLS FIRST), '[]')
            FROM (
                SELECT m.agent, m.model, count(*) AS memories, min(m.at) AS oldest, max(m.at) AS newest
                FROM tenure.memory AS m
                WHERE m.expires_at IS NULL OR m.expires_at > tenure.now()
                GROUP BY m.agent, m.model
            ) AS c),
        'events', (SELECT count(*) FROM tenure.agent_event),
        'unremembered', (
            SELECT count(*) FROM tenure.agent_event AS e
            WHERE NOT EXISTS (SELECT 1 FROM tenure.memory AS m WHERE m.agent_event_id = e.id)),
        'compares_vectors', tenure.vector_schema() IS NOT NULL)
$$;

-- Enqueue: one statement makes every new job, whatever it carries; a clone is the second and last way a job comes into being.

-- Keys and ranks: how a slot, a hash and a rank are made. The SQLite engine makes them by the same rules.
-- A slot gives the length of its kind, so that no kind and key can be read as another kind and key. In PL/pgSQL: the planner would write
-- it into each statement that calls it, which then prepares all of it for every job.

CREATE OR REPLACE FUNCTION tenure.slot_of(p_scope text, p_space text, p_profile text, p_kind text, p_key text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    IF p_scope = 'none' THEN
        RETURN NULL;
    END IF;
    RETURN left(p_scope, 1) || '|' || p_profile || chr(31)
        || CASE p_space WHEN 'kind' THEN length(p_kind) || chr(31) || p_kind ELSE '' END || chr(31) || p_key;
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

-- declare_queues: {name: policy}: those that are not there are made, unused ones pass to the profile that the policy names, and one that
-- belongs to another profile is refused.
CREATE OR REPLACE FUNCTION tenure.declare_queues(p_policies json) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_queues bigint := (SELECT count(*) FROM json_object_keys(p_policies));
BEGIN
    IF v_queues > 100 THEN
        RAISE EXCEPTION 'An enqueue declares at most 100 queues, and this one % queues. Nothing was enqueued. Declare those that its jobs are for.', v_queues
            USING ERRCODE = 'TN007';
    END IF;
    PERFORM tenure.set_queues(json_build_object('policies', p_policies, 'actor', 'enqueue', 'only_new', true));
    PERFORM tenure.refuse_profile(q.name, q.profile, e.value ->> 'profile')
    FROM json_each(p_policies) AS e
    JOIN tenure.queue AS q ON q.name = e.key
    WHERE coalesce(e.value ->> 'profile', 'default') NOT IN ('default', q.profile);
END
$$;

-- refuse_profile: a job that is meant for one profile does not go into a queue that has another's rules.
CREATE OR REPLACE FUNCTION tenure.refuse_profile(p_queue text, p_profile text, p_wanted text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'Queue % belongs to profile %, not to %. Nothing was enqueued. Give it over with `tenure queues set % profile=%` '
        'once its jobs have ended, or use another queue.',
        quote_literal(p_queue), quote_literal(p_profile), quote_literal(p_wanted), p_queue, p_wanted
        USING ERRCODE = 'TN010';
END
$$;

-- refuse_payloads: what a queue forbids or asks for, checked before anything is written.
CREATE OR REPLACE FUNCTION tenure.refuse_payloads(p_jobs json, p_queue tenure.queue) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_job uuid;
BEGIN
    IF p_queue.forbidden_keys IS NOT NULL THEN
        SELECT g.i INTO v_job
        FROM json_to_recordset(p_jobs) AS g(i uuid, p json)
        WHERE tenure.has_key(g.p, p_queue.forbidden_keys)
        LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'Job %: its payload carries a key that queue % forbids (%). Nothing was changed. Pass a reference instead.',
                v_job, quote_literal(p_queue.name), array_to_string(p_queue.forbidden_keys, ', ') USING ERRCODE = 'TN006';
        END IF;
    END IF;
    IF p_queue.key_required THEN
        SELECT g.i INTO v_job FROM json_to_recordset(p_jobs) AS g(i uuid, k text) WHERE coalesce(g.k, '') = '' LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'Job %: queue % asks for an idempotency key and none was given. Nothing was enqueued. Pass key=….',
                v_job, quote_literal(p_queue.name) USING ERRCODE = 'TN005';
        END IF;
    END IF;
END
$$;

-- refuse_priorities: what the profile of a queue says of priorities, for every door alike (settings priority_min and priority_max).
CREATE OR REPLACE FUNCTION tenure.refuse_priorities(p_jobs json, p_queue tenure.queue) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_min integer;
    v_max integer;
    v_job record;
BEGIN
    SELECT (p.settings ->> 'priority_min')::integer, (p.settings ->> 'priority_max')::integer INTO v_min, v_max
    FROM tenure.profile AS p
    WHERE p.name = p_queue.profile;
    IF num_nonnulls(v_min, v_max) > 0 THEN
        SELECT g.i, g.r INTO v_job FROM json_to_recordset(p_jobs) AS g(i uuid, r integer) WHERE g.r < v_min OR g.r > v_max LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'Job %: priority is %, and profile % takes priorities %. Nothing was changed.', v_job.i, v_job.r,
                quote_literal(p_queue.profile), concat_ws(' ', 'from ' || v_min, CASE WHEN v_min IS NULL THEN 'up to ' || v_max ELSE 'to ' || v_max END)
                USING ERRCODE = 'TN007';
        END IF;
    END IF;
END
$$;

-- refuse_large: no reader shows a payload above 16 MiB.
CREATE OR REPLACE FUNCTION tenure.refuse_large(p_groups json) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_job uuid;
BEGIN
    SELECT s.i INTO v_job
    FROM json_to_recordset(p_groups) AS g(jobs json)
    CROSS JOIN LATERAL json_to_recordset(g.jobs) AS s(i uuid, p json)
    WHERE octet_length(s.p::text) > 16777216
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'Job %: its payload is larger than 16 MiB. Nothing was enqueued. Store the data elsewhere and pass a reference.', v_job
            USING ERRCODE = 'TN007';
    END IF;
END
$$;

-- refuse_key: a key is held by a job with another payload. Whose job that is not, is not told which.
CREATE OR REPLACE FUNCTION tenure.refuse_key(p_key text, p_kind text, p_holder uuid, p_enqueued_by text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF tenure.is_known(p_enqueued_by) THEN
        RAISE EXCEPTION 'Key % of kind % is held by job % with a different payload. Nothing was enqueued. Use another key, or the same payload.',
            quote_literal(p_key), quote_literal(p_kind), p_holder USING ERRCODE = 'TN004',
            DETAIL = json_build_object('key', p_key, 'kind', p_kind, 'holder', p_holder)::text;
    END IF;
    RAISE EXCEPTION 'Key % of kind % is held by a job of another login with a different payload. Nothing was enqueued. Use another key, or the same payload.',
        quote_literal(p_key), quote_literal(p_kind) USING ERRCODE = 'TN004', DETAIL = json_build_object('key', p_key, 'kind', p_kind)::text;
END
$$;

-- closed_gates: the names of the closed gates; null if all are open.
CREATE OR REPLACE FUNCTION tenure.closed_gates() RETURNS text[]
LANGUAGE plpgsql STABLE
AS $$ BEGIN RETURN (SELECT array_agg(g.name) FROM tenure.gate AS g WHERE NOT g.is_open); END $$;

-- notify: a hint that jobs of these queues are due, or will be within soon(), sent with the commit, once per transaction and queue.
-- p_closed: the closed gates, where the caller has read them.
CREATE OR REPLACE FUNCTION tenure.notify(p_queues text[], p_closed text[] DEFAULT tenure.closed_gates()) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_queue text;
BEGIN
    FOREACH v_queue IN ARRAY p_queues LOOP
        IF p_closed IS NULL OR NOT 'notify' = ANY (p_closed)
            AND NOT EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.name = v_queue AND q.profile || '.notify' = ANY (p_closed))
        THEN
            PERFORM pg_notify('tenure', v_queue);
        END IF;
    END LOOP;
END
$$;

-- enqueue: put a batch of jobs in state queued, in one transaction (the caller's, if it has one).
--
-- Takes {"groups": [{"queue", "kind", "jobs": [{"i": id, "p": payload, …}]}], "create": {name: policy}}.
-- Answers null if every job is new, else {"duplicates": [[id, id of the job that holds the key], …]}. The holder is null where it is a
-- job of another login with another payload, and the caller may not know of it.
CREATE OR REPLACE FUNCTION tenure.enqueue(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_groups json := p_request -> 'groups';
BEGIN
    -- `->` parses the whole request, so `create` is looked for only where the request is more than {"groups":…}.
    IF octet_length(p_request::text) IS DISTINCT FROM octet_length(v_groups::text) + 11 AND p_request -> 'create' IS NOT NULL THEN
        PERFORM tenure.declare_queues(p_request -> 'create');
    END IF;
    RETURN tenure.put_jobs(v_groups, true);
END
$$;

-- put_jobs: the groups of an enqueue request. The follow-ups of a completed job come here too, without p_is_gated: a settle is never
-- refused by a gate. p_group_id: they are children of that group. p_login: whose jobs they are.
--
-- Invariants: the unique index on dedup_slot decides which job holds a key, never a look beforehand; a job whose own id is already there
-- was enqueued by an earlier try of this very request and counts as created; slots are taken in one order, so that two batches with the
-- same keys cannot wait for each other in a circle.
--
-- A single job costs what its statements cost to begin, which rises with the columns of each step of the plan. So the queues are read
-- first, the sort is over few columns, and what is rarely set is read from the JSON above the sort.
CREATE OR REPLACE FUNCTION tenure.put_jobs(
    p_groups json, p_is_gated boolean, p_group_id uuid DEFAULT NULL, p_login text DEFAULT tenure.login()
) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_closed text[];
    v_group record;
    v_queue tenure.queue;
    v_term tenure.terms;
    v_terms tenure.terms[] := '{}';
    v_queues text[] := '{}';
    v_given integer := 0;
    v_ids uuid[];
    v_is_soon boolean;
    v_events boolean := false;
    v_found json[] := '{}';
    v_again tenure.terms[];
    v_row record;
    v_holder record;
BEGIN
    IF octet_length(p_groups::text) > 16777216 THEN
        PERFORM tenure.refuse_large(p_groups);
    END IF;
    FOR v_group IN
        SELECT g.queue, g.kind, g.jobs, q AS policy, (SELECT array_agg(c.name) FROM tenure.gate AS c WHERE NOT c.is_open) AS closed
        FROM json_to_recordset(p_groups) AS g(queue text, kind text, jobs json)
        LEFT JOIN tenure.queue AS q ON q.name = g.queue
    LOOP
        v_queue := v_group.policy;
        v_closed := v_group.closed;
        IF v_queue.name IS NULL THEN
            PERFORM tenure.refuse_unknown_queue(v_group.queue);
        ELSIF v_closed IS NOT NULL AND p_is_gated THEN
            PERFORM tenure.refuse_gate(min(c.name), 'enqueue')
            FROM unnest(v_closed) AS c(name)
            WHERE c.name IN ('master', v_queue.profile || '.master', 'queue:' || v_queue.name)
            HAVING count(*) > 0;
        END IF;
        IF v_queue.forbidden_keys IS NOT NULL OR v_queue.key_required THEN
            PERFORM tenure.refuse_payloads(v_group.jobs, v_queue);
        END IF;
        IF v_queue.profile <> 'default' THEN
            PERFORM tenure.refuse_priorities(v_group.jobs, v_queue);
        END IF;
        v_queues := v_queues || v_queue.name;
        v_events := v_events OR v_queue.events;
        v_given := v_given + coalesce(json_array_length(v_group.jobs), 0);
        v_term := ROW(
            v_queue.name, v_group.kind, v_queue.profile, v_queue.max_attempts, v_queue.priority_default, v_queue.forbidden_keys,
            tenure.slot_of(v_queue.key_scope, v_queue.key_space, v_queue.profile, v_group.kind, ''),
            CASE v_queue.priority_order WHEN 'high' THEN -1 ELSE 1 END, 0, v_group.jobs);
        IF v_queue.aging_seconds IS NOT NULL THEN  -- a step of priority is worth some time, and the start is the time
            v_term.step := v_term.step * (v_queue.aging_seconds * 1000000)::bigint;
            v_term.start := tenure.to_us(v_now);
        END IF;
        v_terms := v_terms || v_term;
    END LOOP;
    LOOP
        WITH created AS (
            INSERT INTO tenure.job (
                id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile,
                payload, payload_hash, idempotency_key, dedup_slot, forbidden_keys,
                affinity_key, concurrency_key, limiter, source_ref, target_ref, payload_ref, actor, created_by_user_id,
                requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, backoff, artifacts_path, group_id, enqueued_by
            )
            SELECT
                r.i, r.step * r.priority + r.start, r.run_at, v_now, v_now, r.priority, r.max_attempts,
                r.run_at <= v_now, r.queue, r.kind, r.profile,
                r.payload, CASE WHEN r.k IS NOT NULL THEN tenure.payload_hash(r.payload) END, r.k, r.slot, r.forbidden_keys,
                r.x ->> 'affinity_key', r.x ->> 'concurrency_key', r.x ->> 'limiter', r.x ->> 'source_ref', r.x ->> 'target_ref', r.x ->> 'payload_ref',
                r.x ->> 'actor', (r.x ->> 'created_by_user_id')::uuid, (r.x ->> 'requested_by_user_id')::uuid, r.x ->> 'tenant',
                (r.x ->> 'workflow_id')::uuid, (r.x ->> 'parent_id')::uuid, (r.x ->> 'run_id')::uuid, r.x ->> 'trace',
                r.x -> 'backoff', r.x ->> 'artifacts_path', p_group_id, p_login
            FROM (
                SELECT g.queue, g.kind, g.profile, g.forbidden_keys, g.step, g.start, s.i, s.k, s.x,
                    g.slot || s.k AS slot, coalesce(s.p, 'null') AS payload, coalesce(s.r, g.priority) AS priority,
                    coalesce(s.m, g.max_attempts) AS max_attempts,
                    CASE
                        WHEN s.d IS NOT NULL THEN v_now + s.d * interval '1 second'
                        WHEN s.a IS NOT NULL THEN tenure.from_us(s.a)
                        ELSE v_now
                    END AS run_at
                FROM unnest(v_terms) AS g
                CROSS JOIN LATERAL json_to_recordset(g.jobs) AS s(i uuid, p json, r integer, k text, m integer, a bigint, d double precision, x json)
                ORDER BY g.slot || s.k, s.i
            ) AS r
            ON CONFLICT DO NOTHING
            RETURNING id, run_at
        )
        SELECT array_agg(c.id), bool_or(c.run_at <= v_now + tenure.soon()) INTO v_ids, v_is_soon FROM created AS c;
        IF v_events AND v_ids IS NOT NULL THEN
            PERFORM tenure.tell('queued', v_ids, v_now);
        END IF;
        IF v_is_soon THEN
            PERFORM tenure.notify(v_queues, v_closed);
        END IF;
        EXIT WHEN coalesce(cardinality(v_ids), 0) = v_given;
        -- Some were not inserted: find the holder of each key. A holder whose window has passed gives its slot up, and one that ended
        -- meanwhile has none any more; those jobs are inserted again.
        v_again := '{}';
        FOR v_row IN
            SELECT s.i, s.k, s.p, e.kind, e AS term, q AS queue, n.value AS whole, e.slot || s.k AS slot
            FROM unnest(v_terms) AS e
            JOIN tenure.queue AS q ON q.name = e.queue
            CROSS JOIN LATERAL json_array_elements(e.jobs) AS n
            CROSS JOIN LATERAL json_to_record(n.value) AS s(i uuid, k text, p json)
            WHERE NOT s.i = ANY (coalesce(v_ids, '{}'))
            ORDER BY slot, s.i
        LOOP
            v_queue := v_row.queue;
            SELECT j.queue, j.kind, j.payload, j.enqueued_by INTO v_holder FROM tenure.job AS j WHERE j.id = v_row.i;
            IF FOUND THEN
                IF v_holder.queue <> v_queue.name OR v_holder.kind <> v_row.kind OR NOT tenure.is_known(v_holder.enqueued_by)
                    OR v_holder.payload::text <> coalesce(v_row.p, 'null')::text AND tenure.payload_hash(v_holder.payload) <> tenure.payload_hash(coalesce(v_row.p, 'null'))
                        AND NOT tenure.is_edited(v_row.i)
                THEN
                    RAISE EXCEPTION 'The id % belongs to another job. Nothing was enqueued. Make a new id for each job.', v_row.i USING ERRCODE = 'TN007';
                END IF;
                CONTINUE;
            END IF;
            SELECT j.id, j.payload_hash, j.created_at, j.enqueued_by INTO v_holder FROM tenure.job AS j WHERE j.dedup_slot = v_row.slot;
            IF FOUND AND v_queue.key_scope = 'window'
                AND v_holder.created_at + v_queue.key_window_seconds * interval '1 second' <= v_now
            THEN
                UPDATE tenure.job AS j SET dedup_slot = NULL WHERE j.id = v_holder.id AND j.dedup_slot = v_row.slot;
                v_holder.id := NULL;
            END IF;
            IF v_holder.id IS NULL THEN
                v_term := v_row.term;
                v_term.jobs := json_build_array(v_row.whole);
                v_again := v_again || v_term;
            ELSIF v_queue.key_conflict = 'error' AND v_holder.payload_hash IS DISTINCT FROM tenure.payload_hash(coalesce(v_row.p, 'null')) THEN
                PERFORM tenure.refuse_key(v_row.k, v_row.kind, v_holder.id, v_holder.enqueued_by);
            ELSE
                -- To a login that is not its owner, the holder is named only for the very same job.
                v_found := v_found || json_build_array(v_row.i, CASE
                    WHEN tenure.is_known(v_holder.enqueued_by) OR v_holder.payload_hash = tenure.payload_hash(coalesce(v_row.p, 'null'))
                        THEN v_holder.id END);
            END IF;
        END LOOP;
        v_terms := v_again;
        v_given := cardinality(v_terms);
        EXIT WHEN v_given = 0;
    END LOOP;
    RETURN CASE WHEN cardinality(v_found) > 0 THEN json_build_object('duplicates', array_to_json(v_found)) END;
END
$$;

-- is_edited: whether a job was given another payload, or priority, than it was enqueued with.
CREATE OR REPLACE FUNCTION tenure.is_edited(p_id uuid) RETURNS boolean
LANGUAGE sql STABLE
AS $$ SELECT EXISTS (SELECT 1 FROM tenure.audit AS a WHERE a.subject = p_id::text AND a.act = 'edit') $$;

-- edit_job: {"job_id", "payload", "priority", "version", "actor", "reason"} → the job as it stands now. Another payload or priority for a
-- job that waits in its queue, on the terms on which the queue takes jobs today.
--
-- Invariants: the row is locked, so no claim comes in between; updated_at rises with every edit, so that a version is never shown by
-- two of them; what stands already is answered and not written, so a repeat is harmless.
CREATE OR REPLACE FUNCTION tenure.edit_job(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_id text := p_request ->> 'job_id';
    v_job tenure.job;
    v_queue tenure.queue;
    v_payload json := p_request -> 'payload';
    v_priority integer := (p_request ->> 'priority')::integer;
    v_from json;
    v_checked json;
BEGIN
    SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = tenure.as_uuid(v_id) FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'There is no job %, so nothing was changed. Look for it with `tenure jobs ls`.', v_id USING ERRCODE = 'TN009';
    END IF;
    IF v_payload::text IS NOT DISTINCT FROM v_job.payload::text THEN
        v_payload := NULL;
    END IF;
    IF v_priority = v_job.priority THEN
        v_priority := NULL;
    END IF;
    IF v_payload IS NULL AND v_priority IS NULL THEN
        RETURN tenure.show_job(v_job);
    ELSIF v_job.state <> 'queued' THEN
        RAISE EXCEPTION 'Job % is %, so nothing was changed: only a job that waits in its queue can be edited.', v_id, v_job.state
            USING ERRCODE = 'TN008';
    END IF;
    PERFORM tenure.refuse_outdated(v_job, p_request ->> 'version');
    IF v_payload IS NOT NULL AND v_job.step_token IS NOT NULL AND EXISTS (SELECT 1 FROM tenure.step AS s WHERE s.job_id = v_job.id) THEN
        RAISE EXCEPTION 'Job % has recorded steps, which go by its payload, so nothing was changed. Forget them first with '
            '`tenure jobs forget-step`, or cancel it and enqueue a new job.', v_id USING ERRCODE = 'TN008';
    END IF;
    SELECT * INTO STRICT v_queue FROM tenure.queue AS q WHERE q.name = v_job.queue;
    v_checked := json_build_array(json_build_object('i', v_id, 'p', v_payload, 'r', v_priority, 'k', v_job.idempotency_key));
    IF v_payload IS NOT NULL THEN
        PERFORM tenure.refuse_large(json_build_array(json_build_object('jobs', v_checked)));
        PERFORM tenure.refuse_payloads(v_checked, v_queue);
    END IF;
    IF v_priority IS NOT NULL THEN
        PERFORM tenure.refuse_priorities(v_checked, v_queue);
    END IF;
    v_from := tenure.edit_digest(v_job);
    UPDATE tenure.job AS j
    SET payload = coalesce(v_payload, j.payload),
        payload_hash = CASE WHEN v_payload IS NULL OR j.idempotency_key IS NULL THEN j.payload_hash ELSE tenure.payload_hash(v_payload) END,
        forbidden_keys = CASE WHEN v_payload IS NULL THEN j.forbidden_keys ELSE v_queue.forbidden_keys END,
        priority = coalesce(v_priority, j.priority),
        rank = CASE WHEN v_priority IS NULL THEN j.rank
            ELSE tenure.rank_of(v_priority, v_queue.priority_order, v_queue.aging_seconds, j.created_at) END,
        updated_at = greatest(v_now, j.updated_at + interval '1 microsecond')
    WHERE j.id = v_job.id
    RETURNING j.* INTO v_job;
    IF v_queue.events THEN
        PERFORM tenure.tell('edited', ARRAY[v_job.id], v_now);
    END IF;
    PERFORM tenure.write_audit(
        v_now, p_request ->> 'actor', 'edit', v_job.id::text, p_request ->> 'reason',
        json_build_object('from', v_from, 'to', tenure.edit_digest(v_job))
    );
    RETURN tenure.show_job(v_job);
END
$$;

-- edit_digest: what the audit keeps of a job that is edited: its priority, and the hash of its payload, never the payload.
CREATE OR REPLACE FUNCTION tenure.edit_digest(p_job tenure.job) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object('payload', tenure.payload_hash((p_job).payload), 'priority', (p_job).priority)
$$;

-- clone: {"job_ids": {old id: new id, …}, "actor", "reason"} → [[old id, new id, id of the job that holds the key or null], …].
--
-- A copy takes what was asked for, not what happened: payload, policy of the queue as it is now, references. Where a key counts only
-- while its job is active, the copy takes it too, and a job that holds it makes the copy a duplicate; where a key counts longer it
-- stays with the original. All or none.
CREATE OR REPLACE FUNCTION tenure.clone(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_pair record;
    v_job tenure.job;
    v_holder uuid;
    v_answers json[] := '{}';
BEGIN
    FOR v_pair IN SELECT e.key AS old_id, e.value AS new_id FROM json_each_text(p_request -> 'job_ids') AS e ORDER BY e.key COLLATE "C" LOOP
        SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = tenure.as_uuid(v_pair.old_id) FOR SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'There is no job %, so nothing was cloned.', v_pair.old_id USING ERRCODE = 'TN009';
        ELSIF v_job.finished_at IS NULL THEN
            RAISE EXCEPTION 'Job % is %; only a job that has ended can be cloned. Nothing was cloned.', v_pair.old_id, v_job.state
                USING ERRCODE = 'TN008';
        ELSIF v_job.cleaned_at IS NOT NULL THEN
            RAISE EXCEPTION 'Job % was pruned: its payload is gone, so it cannot be cloned. Nothing was cloned.', v_pair.old_id
                USING ERRCODE = 'TN008';
        END IF;
        v_job.actor := p_request ->> 'actor';  -- who has it done again
        v_holder := tenure.copy_job(v_job, v_pair.new_id::uuid, v_now);
        PERFORM tenure.write_audit(
            v_now, p_request ->> 'actor', 'clone', v_pair.old_id, p_request ->> 'reason',
            json_build_object('clone', v_pair.new_id, 'duplicate_of', v_holder)
        );
        v_answers := v_answers || json_build_array(v_pair.old_id, v_pair.new_id, v_holder);
    END LOOP;
    RETURN array_to_json(v_answers);
END
$$;

-- copy_job: insert the copy under its new id, as a job of the login that the original belongs to. Answers null, or the job that holds its key; a copy that is already there was made by
-- an earlier try of the same request.
CREATE OR REPLACE FUNCTION tenure.copy_job(p_job tenure.job, p_new_id uuid, p_now timestamptz) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_queue tenure.queue;
    v_slot text;
    v_holder uuid;
BEGIN
    SELECT * INTO STRICT v_queue FROM tenure.queue AS q WHERE q.name = p_job.queue;
    IF v_queue.key_scope = 'active' AND p_job.idempotency_key IS NOT NULL THEN
        v_slot := tenure.slot_of(v_queue.key_scope, v_queue.key_space, v_queue.profile, p_job.kind, p_job.idempotency_key);
    END IF;
    LOOP
        INSERT INTO tenure.job (
            id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile,
            payload, payload_hash, idempotency_key, dedup_slot, forbidden_keys,
            affinity_key, concurrency_key, limiter, source_ref, target_ref, payload_ref, actor, created_by_user_id,
            requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, backoff, enqueued_by
        )
        VALUES (
            p_new_id, tenure.rank_of(p_job.priority, v_queue.priority_order, v_queue.aging_seconds, p_now), p_now, p_now, p_now,
            p_job.priority, p_job.max_attempts, true, p_job.queue, p_job.kind, v_queue.profile,
            p_job.payload, p_job.payload_hash, p_job.idempotency_key, v_slot, v_queue.forbidden_keys,
            p_job.affinity_key, p_job.concurrency_key, p_job.limiter, p_job.source_ref, p_job.target_ref, p_job.payload_ref, p_job.actor,
            p_job.created_by_user_id, p_job.requested_by_user_id, p_job.tenant, p_job.workflow_id, p_job.id, p_job.run_id,
            p_job.trace, p_job.backoff, p_job.enqueued_by
        )
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            EXIT;
        END IF;
        IF EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.id = p_new_id) THEN
            RETURN NULL;
        END IF;
        SELECT j.id INTO v_holder FROM tenure.job AS j WHERE j.dedup_slot = v_slot;
        IF FOUND THEN
            RETURN v_holder;
        END IF;
        -- The holder ended between the two looks: its key is free again.
    END LOOP;
    IF v_queue.events THEN
        PERFORM tenure.tell('queued', ARRAY[p_new_id], p_now);
    END IF;
    PERFORM tenure.notify(ARRAY[v_queue.name]);
    RETURN NULL;
END
$$;

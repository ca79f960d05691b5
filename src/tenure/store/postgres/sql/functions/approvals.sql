-- Approvals: what durable jobs ask of people. store/approvals.py is the specification.

-- put_approval: what an open step of kind approval asks for, and the step. The caller has locked the job and checked its token. p_step is
-- a step whose value is {"id", "name", "args": JSON as text, "text", "need", "ask": [name], "expires": seconds, "on_expiry"}.
-- Answers 2 if a new question was asked, 0 if it stands already.
CREATE OR REPLACE FUNCTION tenure.put_approval(p_job_id uuid, p_token bigint, p_step json, p_now timestamptz) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    v_key text := p_step ->> 'key';
    v_asked json := p_step -> 'value';
    v_id uuid := tenure.as_uuid(v_asked ->> 'id');
    v_args text := v_asked ->> 'args';
    v_hash text;
    v_ask json := CASE WHEN json_typeof(v_asked -> 'ask') = 'null' THEN '[]' ELSE coalesce(v_asked -> 'ask', '[]') END;
    v_is_ask_bad boolean := CASE json_typeof(v_ask)
        WHEN 'array' THEN json_array_length(v_ask) > 100
            OR EXISTS (SELECT 1 FROM json_array_elements(v_ask) AS o(name) WHERE json_typeof(o.name) <> 'string' OR btrim(o.name #>> '{}') = '')
        ELSE true
    END;
    v_need integer;
    v_expires double precision;
    v_current tenure.approval;
BEGIN
    BEGIN
        v_need := coalesce((v_asked ->> 'need')::integer, 1);
        v_expires := (v_asked ->> 'expires')::double precision;
        PERFORM v_args::json;
    EXCEPTION WHEN data_exception THEN
        v_id := NULL;
    END;
    IF v_id IS NULL OR v_args IS NULL OR json_typeof(v_asked -> 'args') <> 'string' OR coalesce(btrim(v_asked ->> 'name'), '') = ''
        OR octet_length(v_args) > 65536 OR length(coalesce(v_asked ->> 'text', '')) > 4000 OR v_need NOT BETWEEN 1 AND 100
        OR coalesce(v_asked ->> 'on_expiry', 'deny') NOT IN ('deny', 'grant') OR v_expires <= 0
        OR v_is_ask_bad
    THEN
        RAISE EXCEPTION 'Step %: an open approval has a value with id (a UUID), name, args (JSON as text, up to 65536 bytes), and maybe text, need (1 to 100), ask (a list of names), expires (seconds) and on_expiry (deny, grant). Nothing was changed.',
            quote_literal(v_key) USING ERRCODE = 'TN007';
    END IF;
    v_hash := encode(sha256(convert_to(v_args, 'UTF8')), 'hex');
    SELECT * INTO v_current FROM tenure.approval AS a WHERE a.job_id = p_job_id AND a.step_key = v_key AND a.state <> 'void' FOR UPDATE;
    IF FOUND THEN
        IF v_current.args_hash = v_hash OR v_current.state = 'used' THEN
            UPDATE tenure.step AS s SET token = p_token WHERE s.job_id = p_job_id AND s.key = v_key AND s.state = 'open';
            RETURN 0;
        END IF;
        UPDATE tenure.approval AS a SET state = 'void', why = 'changed', decided_at = coalesce(a.decided_at, p_now) WHERE a.id = v_current.id;
        IF (SELECT count(*) FROM tenure.approval AS a WHERE a.job_id = p_job_id AND a.step_key = v_key AND a.state = 'void' AND a.why = 'changed') >= 3 THEN
            UPDATE tenure.step AS s
            SET state = 'failed',
                error = 'void',
                token = p_token,
                ended_at = p_now
            WHERE s.job_id = p_job_id AND s.key = v_key;
            RETURN 0;
        END IF;
    END IF;
    INSERT INTO tenure.approval (
        id, job_id, step_key, token, name, args, args_hash, text, need, asked_of, asked_by, on_expiry, created_at, expires_at
    )
    SELECT v_id, p_job_id, v_key, p_token, v_asked ->> 'name', v_args, v_hash, coalesce(v_asked ->> 'text', ''), v_need,
        v_ask, coalesce(j.lease_owner, ''), coalesce(v_asked ->> 'on_expiry', 'deny'), p_now,
        p_now + v_expires * interval '1 second'
    FROM tenure.job AS j
    WHERE j.id = p_job_id;
    INSERT INTO tenure.step AS s (job_id, key, ordinal, kind, state, token, value, awaits, created_at)
    VALUES (
        p_job_id, v_key, (SELECT coalesce(max(o.ordinal), 0) + 1 FROM tenure.step AS o WHERE o.job_id = p_job_id), 'approval', 'open',
        p_token, format('{"approval":"%s","args_hash":"%s"}', v_id, v_hash)::json, 'approval:' || v_id, p_now
    )
    ON CONFLICT (job_id, key) DO UPDATE
    SET kind = 'approval',
        state = 'open',
        token = excluded.token,
        value = excluded.value,
        error = NULL,
        awaits = excluded.awaits,
        due_at = NULL,
        ended_at = NULL;
    RETURN 2;
END
$$;

-- end_of_approval: how an approval ended, for the step that waits for it; null while it is pending. by: those who approved, or who denied.
CREATE OR REPLACE FUNCTION tenure.end_of_approval(p_id uuid) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'approval', a.id, 'state', a.state, 'granted', a.state IN ('granted', 'used'), 'why', a.why,
        'by', (SELECT coalesce(json_agg(v.voter ORDER BY v.at, v.person), '[]') FROM tenure.vote AS v
            WHERE v.approval_id = a.id AND v.choice = CASE a.state WHEN 'denied' THEN 'deny' ELSE 'approve' END),
        'note', (SELECT v.note FROM tenure.vote AS v
            WHERE v.approval_id = a.id AND v.choice = CASE a.state WHEN 'denied' THEN 'deny' ELSE 'approve' END AND v.note IS NOT NULL
            ORDER BY v.at DESC, v.person DESC LIMIT 1),
        'args', a.args, 'args_hash', a.args_hash)
    FROM tenure.approval AS a
    WHERE a.id = p_id AND a.state <> 'pending'
$$;

-- void_approvals: durable jobs have ended: what they still ask is void. The caller has locked the jobs.
CREATE OR REPLACE FUNCTION tenure.void_approvals(p_ids uuid[], p_now timestamptz) RETURNS void
LANGUAGE sql
AS $$
    UPDATE tenure.approval AS a
    SET state = 'void',
        why = 'ended',
        decided_at = p_now
    WHERE a.job_id = ANY (p_ids) AND a.state = 'pending'
$$;

-- use_approval: an effect uses an approval, which must be granted for its very arguments and used by no other effect.
CREATE OR REPLACE FUNCTION tenure.use_approval(p_job_id uuid, p_id text, p_step text, p_name text, p_args json, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_args text;
BEGIN
    UPDATE tenure.approval AS a
    SET state = 'used',
        used_at = coalesce(a.used_at, p_now),
        used_for = p_step || ':' || p_name
    WHERE a.id = tenure.as_uuid(p_id) AND a.job_id = p_job_id
        AND (a.state = 'granted' OR a.state = 'used' AND a.used_for = p_step || ':' || p_name)
    RETURNING a.args INTO v_args;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'Effect % of job % may not use approval %: it is not granted, or another effect has used it. Ask for an approval of its own. Nothing was done.',
            quote_literal(p_name), p_job_id, p_id USING ERRCODE = 'TN008';
    ELSIF v_args::jsonb <> p_args::jsonb THEN
        RAISE EXCEPTION 'Effect % of job % has other arguments than approval % was given for. Do it with the arguments of the decision. Nothing was done.',
            quote_literal(p_name), p_job_id, p_id USING ERRCODE = 'TN008';
    END IF;
END
$$;

-- expire_approvals: close what has expired, up to p_limit, and leave events for the jobs that wait. Answers how many.
CREATE OR REPLACE FUNCTION tenure.expire_approvals(p_limit integer, p_now timestamptz) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    v_ids uuid[];
BEGIN
    WITH over AS MATERIALIZED (
        SELECT a.id
        FROM tenure.approval AS a
        WHERE a.state = 'pending' AND a.expires_at IS NOT NULL AND a.expires_at <= p_now
        ORDER BY a.expires_at
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        UPDATE tenure.approval AS a
        SET state = CASE a.on_expiry WHEN 'grant' THEN 'granted' ELSE 'expired' END,
            why = CASE a.on_expiry WHEN 'grant' THEN 'expiry' END,
            decided_at = p_now
        FROM over AS o
        WHERE a.id = o.id
        RETURNING a.id
    )
    SELECT coalesce(array_agg(g.id), '{}') INTO v_ids FROM gone AS g;
    PERFORM tenure.wake_on('approval:' || u.id) FROM unnest(v_ids) AS u(id);
    RETURN cardinality(v_ids);
END
$$;

-- plain_name: names that mean one person are the same here. Case and blanks at the ends do not tell people apart: all that Unicode calls
-- blank, as model.approval.same_name has it.
CREATE OR REPLACE FUNCTION tenure.plain_name(p_name text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT lower(btrim(p_name, E'\t\n\x0b\f\r\x1c\x1d\x1e\x1f \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006'
        '\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000'))
$$;

-- editors_of: who has given another payload to a job, or to one that it descends from.
CREATE OR REPLACE FUNCTION tenure.editors_of(p_job_id uuid) RETURNS text[]
LANGUAGE sql STABLE
AS $$
    WITH RECURSIVE line(id, depth) AS (
        SELECT p_job_id, 1
        UNION ALL
        SELECT j.parent_id, l.depth + 1
        FROM line AS l
        JOIN tenure.job AS j ON j.id = l.id
        WHERE j.parent_id IS NOT NULL AND l.depth < 100
    )
    SELECT coalesce(array_agg(DISTINCT a.actor), '{}')
    FROM line AS l
    JOIN tenure.audit AS a ON a.subject = l.id::text
    WHERE a.act = 'edit' AND a.detail #>> '{from,payload}' <> a.detail #>> '{to,payload}'
$$;

-- decide_approval: one person's answer. {"id", "voter", "choice": approve|deny, "args_hash", "note", "groups": [name], "door",
-- "vouched_by"} → the approval as it stands then.
--
-- The row is locked first: of two that answer at once, the second sees what the first has decided. The job is only read: a job that ends
-- meanwhile waits for this row to void it, or has voided it before.
CREATE OR REPLACE FUNCTION tenure.decide_approval(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_asked tenure.approval;
    v_job tenure.job;
    v_vote tenure.vote;
    v_voter text := btrim(p_request ->> 'voter');
    v_person text := tenure.plain_name(p_request ->> 'voter');
    v_choice text := p_request ->> 'choice';
    v_note text := p_request ->> 'note';
    v_door text := coalesce(p_request ->> 'door', 'sql');
    v_maker text := tenure.plain_name(p_request ->> 'vouched_by');
    v_involved text[];
    v_named text[];
    v_name text;
    v_state text := 'pending';
BEGIN
    IF coalesce(v_person, '') = '' OR length(v_voter) > 200 OR coalesce(v_choice, '') NOT IN ('approve', 'deny') OR length(v_note) > 2000 THEN
        RAISE EXCEPTION 'An answer needs voter (a name of up to 200 characters), choice (approve or deny) and maybe a note of up to 2000 characters. Nothing was changed.'
            USING ERRCODE = 'TN007';
    END IF;
    -- A server speaks for people whose groups it knows; any other login would only type them.
    IF json_array_length(coalesce(p_request -> 'groups', '[]')) > 0 AND NOT tenure.may('keep_secret') THEN
        RAISE EXCEPTION 'Only a login with the role tenure_admin may answer in the name of a group. Nothing was changed.' USING ERRCODE = 'TN010';
    END IF;
    SELECT * INTO v_asked FROM tenure.approval AS a WHERE a.id = tenure.as_uuid(p_request ->> 'id') FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'There is no approval %. `tenure inbox ls` lists what waits for an answer.', p_request ->> 'id' USING ERRCODE = 'TN009';
    END IF;
    SELECT * INTO v_vote FROM tenure.vote AS v WHERE v.approval_id = v_asked.id AND v.person = v_person;
    IF v_vote.choice = v_choice AND v_vote.args_hash = p_request ->> 'args_hash' THEN
        RETURN tenure.show_approval(v_asked);
    END IF;
    SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = v_asked.job_id;
    v_involved := ARRAY[
        v_job.actor, v_job.created_by_user_id::text, v_job.requested_by_user_id::text, v_job.queue, nullif(v_asked.asked_by, '')
    ] || tenure.editors_of(v_asked.job_id);
    FOREACH v_name IN ARRAY ARRAY[v_voter, p_request ->> 'vouched_by'] LOOP
        IF EXISTS (SELECT 1 FROM unnest(v_involved) AS i(name) WHERE tenure.plain_name(i.name) = tenure.plain_name(v_name)) THEN
            RAISE EXCEPTION 'Approval %: % had this job done or does it, so another person has to answer. Nothing was changed.',
                v_asked.id, quote_literal(v_name) USING ERRCODE = 'TN010';
        END IF;
    END LOOP;
    IF json_array_length(v_asked.asked_of) > 0 AND NOT EXISTS (
        SELECT 1
        FROM json_array_elements_text(v_asked.asked_of) AS o(name)
        WHERE tenure.plain_name(o.name) = v_person
            OR tenure.plain_name(o.name) IN (SELECT tenure.plain_name(g.name) FROM unnest(tenure.text_list(p_request -> 'groups')) AS g(name))
    ) THEN
        RAISE EXCEPTION 'Approval % was asked of %, and % is none of them. Nothing was changed.',
            v_asked.id, (SELECT string_agg(o.name, ', ') FROM json_array_elements_text(v_asked.asked_of) AS o(name)), quote_literal(v_voter)
            USING ERRCODE = 'TN010';
    END IF;
    IF v_asked.state = 'void' AND v_asked.why = 'ended' THEN
        RAISE EXCEPTION 'Approval %: its job % has ended as %, so no answer is needed. Nothing was changed.',
            v_asked.id, v_asked.job_id, v_job.state USING ERRCODE = 'TN008';
    ELSIF v_asked.state = 'void' THEN
        RAISE EXCEPTION 'Approval % is void: its job asks about other arguments now. Look at `tenure inbox ls`.', v_asked.id
            USING ERRCODE = 'TN008';
    ELSIF v_asked.state <> 'pending' THEN
        RAISE EXCEPTION 'Approval % was decided before: it is %. Nothing was changed.', v_asked.id, v_asked.state USING ERRCODE = 'TN008';
    ELSIF v_asked.expires_at <= v_now THEN
        RAISE EXCEPTION 'Approval % expired at % UTC, so it takes no answer. Nothing was changed.',
            v_asked.id, to_char(v_asked.expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') USING ERRCODE = 'TN008';
    ELSIF v_asked.args_hash IS DISTINCT FROM p_request ->> 'args_hash' THEN
        RAISE EXCEPTION 'Approval %: the answer is about arguments with another hash than those that are asked about. Look at it again and answer what it shows now. Nothing was changed.',
            v_asked.id USING ERRCODE = 'TN008';
    ELSIF v_vote.choice IS NOT NULL THEN
        RAISE EXCEPTION 'Approval %: % has answered already (%). Nothing was changed.', v_asked.id, quote_literal(v_voter), v_vote.choice
            USING ERRCODE = 'TN008';
    END IF;
    -- One person counts once: who answered makes no link that counts, who made one does not answer, and the links of one maker count once,
    -- unless each was made for a person who was asked by name.
    v_named := ARRAY(SELECT tenure.plain_name(o.name) FROM json_array_elements_text(v_asked.asked_of) AS o(name));
    IF EXISTS (
        SELECT 1
        FROM tenure.vote AS v
        WHERE v.approval_id = v_asked.id
            AND (v.person = v_maker
                OR tenure.plain_name(v.vouched_by) = coalesce(v_maker, v_person)
                    AND NOT (v_maker IS NOT NULL AND v.person = ANY (v_named) AND v_person = ANY (v_named)))
    ) THEN
        RAISE EXCEPTION 'Approval %: % has answered already, by themselves or by a link that they made, and one person counts once. Another person has to answer. Nothing was changed.',
            v_asked.id, quote_literal(coalesce(btrim(p_request ->> 'vouched_by'), v_voter)) USING ERRCODE = 'TN010';
    END IF;
    INSERT INTO tenure.vote (approval_id, person, voter, choice, note, args_hash, door, vouched_by, at)
    VALUES (v_asked.id, v_person, v_voter, v_choice, v_note, v_asked.args_hash, v_door, btrim(p_request ->> 'vouched_by'), v_now);
    IF v_choice = 'deny' THEN
        v_state := 'denied';
    ELSIF (SELECT count(*) FROM tenure.vote AS v WHERE v.approval_id = v_asked.id AND v.choice = 'approve') >= v_asked.need THEN
        v_state := 'granted';
    END IF;
    IF v_state <> 'pending' THEN
        UPDATE tenure.approval AS a SET state = v_state, decided_at = v_now WHERE a.id = v_asked.id RETURNING * INTO v_asked;
    END IF;
    PERFORM tenure.write_audit(v_now, v_voter, v_choice, v_asked.id::text, v_note, json_build_object(
        'job_id', v_asked.job_id, 'name', v_asked.name, 'args_hash', v_asked.args_hash, 'door', v_door,
        'vouched_by', p_request ->> 'vouched_by', 'state', v_state));
    IF v_state <> 'pending' THEN
        PERFORM tenure.wake_on('approval:' || v_asked.id);
    END IF;
    RETURN tenure.show_approval(v_asked);
END
$$;

-- show_approval: [id, job_id, step_key, name, args, args_hash, text, need, asked_of, asked_by, state, why, on_expiry, created_at,
-- expires_at, decided_at, used_at, used_for, kind, queue, state of the job, actor, created_by, requested_by, workflow_id, [[voter, choice, note,
-- door, at, vouched_by]]].
CREATE OR REPLACE FUNCTION tenure.show_approval(p_approval tenure.approval) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_array(
        (p_approval).id, (p_approval).job_id, (p_approval).step_key, (p_approval).name, (p_approval).args, (p_approval).args_hash,
        (p_approval).text, (p_approval).need, (p_approval).asked_of, (p_approval).asked_by, (p_approval).state, (p_approval).why,
        (p_approval).on_expiry, tenure.to_us((p_approval).created_at), tenure.to_us((p_approval).expires_at),
        tenure.to_us((p_approval).decided_at), tenure.to_us((p_approval).used_at), (p_approval).used_for, j.kind, j.queue, j.state, j.actor,
        j.created_by_user_id, j.requested_by_user_id, j.workflow_id,
        (SELECT coalesce(json_agg(json_build_array(v.voter, v.choice, v.note, v.door, tenure.to_us(v.at), v.vouched_by) ORDER BY v.at, v.person), '[]')
         FROM tenure.vote AS v WHERE v.approval_id = (p_approval).id))
    FROM (SELECT 1) AS one
    LEFT JOIN tenure.job AS j ON j.id = (p_approval).job_id
$$;

-- list_approvals: {"states", "person", "groups", "job_id", "ids", "limit", "after": id} → approvals as show_approval shows them, newest first. To a
-- worker those of jobs that it may read.
CREATE OR REPLACE FUNCTION tenure.list_approvals(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_states text[] := tenure.text_list(p_request -> 'states');
    v_people text[] := ARRAY(
        SELECT tenure.plain_name(n.name)
        FROM unnest(ARRAY[p_request ->> 'person'] || coalesce(tenure.text_list(p_request -> 'groups'), '{}')) AS n(name));
    v_ids uuid[] := ARRAY(SELECT tenure.as_uuid(t.id) FROM unnest(tenure.text_list(p_request -> 'ids')) AS t(id));
    v_wanted text := 'true';
    v_answer json;
BEGIN
    IF p_request ->> 'ids' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND a.id = ANY ($1)';
    END IF;
    IF v_states = ARRAY['pending'] THEN
        v_wanted := v_wanted || $w$ AND a.state = 'pending'$w$;  -- as the index says it
    ELSIF v_states IS NOT NULL THEN
        v_wanted := v_wanted || ' AND a.state = ANY ($2)';
    END IF;
    IF p_request ->> 'job_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND a.job_id = $3';
    END IF;
    IF p_request ->> 'after' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND a.id < $4';
    END IF;
    IF p_request ->> 'person' IS NOT NULL THEN
        v_wanted := v_wanted || $w$ AND (json_array_length(a.asked_of) = 0
            OR EXISTS (SELECT 1 FROM json_array_elements_text(a.asked_of) AS o(name) WHERE tenure.plain_name(o.name) = ANY ($5)))$w$;
    END IF;
    IF NOT tenure.reads_all() THEN
        v_wanted := v_wanted || ' AND tenure.sees_job(a.job_id)';
    END IF;
    EXECUTE $q$
        SELECT coalesce(json_agg(tenure.show_approval(f.approval) ORDER BY (f.approval).id DESC), '[]')
        FROM (SELECT a AS approval FROM tenure.approval AS a WHERE $q$ || v_wanted || $q$ ORDER BY a.id DESC LIMIT $6) AS f $q$
    INTO v_answer
    USING v_ids, v_states, tenure.as_uuid(p_request ->> 'job_id'), tenure.as_uuid(p_request ->> 'after'), v_people,
        tenure.page_limit(p_request);
    RETURN v_answer;
END
$$;

-- count_approvals: how many that the caller may read wait for an answer, up to 1,000.
CREATE OR REPLACE FUNCTION tenure.count_approvals(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT to_json(count(*))
    FROM (
        SELECT 1
        FROM tenure.approval AS a
        WHERE a.state = 'pending' AND ((SELECT tenure.reads_all()) OR tenure.sees_job(a.job_id))
        LIMIT 1000
    ) AS f
$$;

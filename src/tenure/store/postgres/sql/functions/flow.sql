-- Durable flow: steps, signals, and the sweep that wakes those who wait for them. store/flow.py is the specification.
--
-- No wake-up is lost, and no lock is waited for: the transaction that makes a condition true and the one that parks a job on it both
-- insert a flow event that names the condition. The sweep reads events in a transaction of its own. Whichever of the two commits last,
-- its event is read after both have committed, so the sweep sees the fact and the waiting step.
--
-- No transaction grows with the flow, whatever the planner believed of the tables when it made a plan, which is kept:
--   a join looks up a key by `BETWEEN x AND x` (see tenure.settle_outcomes), and `state || ''` keeps a partial index from being read from
--   end to end instead (see tenure.queue_waiting);
--   a page is read in the order of all columns of its index, compared as a row: to `workflow_id = x ORDER BY job_id` any index that begins
--   with job_id has the order, too, and is read from end to end.

-- put_flow_event: leave an event for the sweep, and note in this transaction that there is one.
CREATE OR REPLACE FUNCTION tenure.put_flow_event(
    p_what text, p_awaits text, p_group_id uuid DEFAULT NULL, p_job_id uuid DEFAULT NULL, p_detail json DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO tenure.flow_event (what, awaits, group_id, job_id, detail) VALUES (p_what, p_awaits, p_group_id, p_job_id, p_detail);
    PERFORM set_config('tenure.has_flow_events', 'on', true);
END
$$;

-- has_flow_events: whether this transaction has left events for the sweep.
CREATE OR REPLACE FUNCTION tenure.has_flow_events() RETURNS boolean
LANGUAGE sql STABLE
AS $$ SELECT coalesce(current_setting('tenure.has_flow_events', true) = 'on', false) $$;

-- wake_on: a condition may be met once this transaction has committed, with p_job_id for that job only. What makes it true must be a row
-- that tenure.condition reads.
CREATE OR REPLACE FUNCTION tenure.wake_on(p_awaits text, p_job_id uuid DEFAULT NULL) RETURNS void
LANGUAGE sql
AS $$ SELECT tenure.put_flow_event('look', p_awaits, NULL, p_job_id) $$;

-- condition: whether what a step awaits has happened, and with which state and value the step ends then. A signal of scope queue is
-- taken by asking. A value that another transaction is taking is passed over.
CREATE OR REPLACE FUNCTION tenure.condition(
    p_awaits text, p_job_id uuid, p_now timestamptz, OUT is_met boolean, OUT state text, OUT value json
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_kind text := split_part(p_awaits, ':', 1);
    v_name text := substr(p_awaits, length(v_kind) + 2);
BEGIN
    state := 'done';
    IF v_kind = 'signal' THEN
        SELECT s.value INTO value
        FROM tenure.signal AS s
        WHERE s.key = v_name AND s.taken_by IS NULL AND s.scope = 'once' AND coalesce(s.job_id = p_job_id, true) AND s.expires_at > p_now
        ORDER BY s.created_at, s.id
        LIMIT 1;
        is_met := FOUND;
        IF NOT is_met THEN
            WITH oldest AS MATERIALIZED (
                SELECT s.id
                FROM tenure.signal AS s
                WHERE s.key = v_name AND s.taken_by IS NULL AND s.scope = 'queue' AND coalesce(s.job_id = p_job_id, true)
                    AND s.expires_at > p_now
                ORDER BY s.created_at, s.id
                LIMIT 1
                FOR UPDATE SKIP LOCKED
            )
            UPDATE tenure.signal AS s SET taken_by = p_job_id FROM oldest AS o WHERE s.id = o.id RETURNING s.value INTO value;
            is_met := FOUND;
        END IF;
    ELSIF v_kind = 'group' THEN
        SELECT g.state, format('{"group":"%s","total":%s,"ended":%s,"failed":%s,"cancelled":%s}', g.id, g.total, g.ended, g.failed, g.cancelled)
        INTO state, value
        FROM tenure.job_group AS g
        WHERE g.id = tenure.as_uuid(v_name) AND g.state <> 'open';
        is_met := FOUND;
    ELSIF v_kind = 'approval' THEN
        value := tenure.end_of_approval(tenure.as_uuid(v_name));
        is_met := value IS NOT NULL;
    ELSIF v_kind = 'memo' THEN
        is_met := tenure.memo_condition(v_name, p_job_id, p_now);
    ELSIF v_kind = 'job' THEN
        is_met := NOT EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.id = tenure.as_uuid(v_name) AND j.finished_at IS NULL);
    ELSE
        is_met := false;
    END IF;
END
$$;

-- watch_job: whether the end of a job will tell those who wait for it, as that of every durable job does; false if it is ending just now, or
-- another transaction holds it. What ends it later locks its row first and then looks for those who wait, which the caller has seen.
CREATE OR REPLACE FUNCTION tenure.watch_job(p_id uuid) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_is_plain boolean;
BEGIN
    SELECT j.step_token IS NULL INTO v_is_plain FROM tenure.job AS j WHERE j.id = p_id AND j.finished_at IS NULL FOR UPDATE SKIP LOCKED;
    IF v_is_plain THEN
        UPDATE tenure.job AS j SET step_token = 0 WHERE j.id = p_id;
    END IF;
    RETURN v_is_plain IS NOT NULL;
END
$$;

-- refuse_steps: refuse steps that cannot be stored, before any is.
CREATE OR REPLACE FUNCTION tenure.refuse_steps(p_steps json) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_step record;
BEGIN
    FOR v_step IN
        SELECT e.value ->> 'key' AS key, coalesce(e.value ->> 'kind', 'step') AS kind, coalesce(e.value ->> 'state', 'done') AS state,
            e.value ->> 'awaits' AS awaits, octet_length((e.value -> 'value')::text) AS bytes,
            count(*) OVER (PARTITION BY e.value ->> 'key') AS times
        FROM json_array_elements(p_steps) AS e
    LOOP
        IF coalesce(btrim(v_step.key), '') = '' OR length(v_step.key) > 300 THEN
            RAISE EXCEPTION 'The key of a step must be a text of 1 to 300 characters, not %. Nothing was changed.', coalesce(quote_literal(left(v_step.key, 50)), 'null')
                USING ERRCODE = 'TN007';
        ELSIF v_step.kind NOT IN ('step', 'sleep', 'signal', 'group', 'approval', 'undo', 'mark', 'budget', 'memo', 'job') THEN
            RAISE EXCEPTION 'Step %: there is no kind %. Nothing was changed.', quote_literal(v_step.key), quote_literal(v_step.kind) USING ERRCODE = 'TN007';
        ELSIF v_step.state NOT IN ('open', 'done', 'failed', 'armed', 'undone') THEN
            RAISE EXCEPTION 'Step %: there is no state %. Nothing was changed.', quote_literal(v_step.key), quote_literal(v_step.state) USING ERRCODE = 'TN007';
        ELSIF v_step.bytes > 1048576 THEN
            RAISE EXCEPTION 'Step %: its value has % bytes, and 1,048,576 are the limit. Keep it in a table of your own and record where it is. Nothing was changed.',
                quote_literal(v_step.key), v_step.bytes USING ERRCODE = 'TN007';
        ELSIF strpos(v_step.awaits, ':') = 0 THEN
            RAISE EXCEPTION 'Step %: awaits % is no condition such as signal:KEY. Nothing was changed.', quote_literal(v_step.key), quote_literal(v_step.awaits)
                USING ERRCODE = 'TN007';
        ELSIF v_step.times > 1 THEN
            RAISE EXCEPTION 'Two steps in one request have the key %. Nothing was changed. Give each its own.', quote_literal(v_step.key) USING ERRCODE = 'TN007';
        END IF;
    END LOOP;
END
$$;

-- put_steps: record steps of a job that the caller has locked, its token checked. The first record of a key stays; an open step may be
-- closed, and is waited for anew if it is given as open again. Answers 2 if a step was new, 1 if only marks and waits for budgets were, 0 if none.
-- A step is {"key", "kind", "state", "value", "error", "awaits", "due": seconds}.
CREATE OR REPLACE FUNCTION tenure.put_steps(p_job_id uuid, p_token bigint, p_steps json, p_now timestamptz) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    v_step record;
    v_new integer := 0;
BEGIN
    PERFORM tenure.refuse_steps(p_steps);
    FOR v_step IN
        SELECT e.value AS given, s.key, coalesce(s.kind, 'step') AS kind, coalesce(s.state, 'done') AS state, e.value -> 'value' AS value,
            left(s.error, 16384) AS error,
            -- As the end of that job names it.
            CASE WHEN s.awaits LIKE 'job:%' THEN coalesce('job:' || tenure.as_uuid(substr(s.awaits, 5)), s.awaits) ELSE s.awaits END AS awaits,
            -- A wait for a budget is never due: a new window wakes only those who fit into it.
            CASE WHEN s.kind IS DISTINCT FROM 'budget' THEN p_now + s.due * interval '1 second' END AS due_at
        FROM json_array_elements(p_steps) WITH ORDINALITY AS e(value, nth)
        CROSS JOIN LATERAL json_to_record(e.value) AS s(key text, kind text, state text, error text, awaits text, due double precision)
        ORDER BY e.nth
    LOOP
        IF v_step.kind = 'approval' AND v_step.state = 'open' THEN
            v_new := greatest(v_new, tenure.put_approval(p_job_id, p_token, v_step.given, p_now));
            CONTINUE;
        END IF;
        INSERT INTO tenure.step (job_id, key, ordinal, kind, state, token, value, error, awaits, due_at, created_at, ended_at)
        VALUES (
            p_job_id, v_step.key, (SELECT coalesce(max(o.ordinal), 0) + 1 FROM tenure.step AS o WHERE o.job_id = p_job_id),
            v_step.kind, v_step.state, p_token, v_step.value, v_step.error, v_step.awaits, v_step.due_at, p_now,
            CASE WHEN v_step.state NOT IN ('open', 'armed') THEN p_now END
        )
        ON CONFLICT (job_id, key) DO NOTHING;
        IF FOUND THEN
            v_new := greatest(v_new, CASE WHEN v_step.kind IN ('mark', 'budget') THEN 1 ELSE 2 END);
            CONTINUE;
        END IF;
        UPDATE tenure.step AS t
        SET state = v_step.state,
            token = p_token,
            value = CASE WHEN v_step.state = 'open' THEN t.value ELSE coalesce(v_step.value, t.value) END,
            error = coalesce(v_step.error, t.error),
            ended_at = CASE WHEN v_step.state <> 'open' THEN p_now END
        WHERE t.job_id = p_job_id AND t.key = v_step.key
            AND (t.state = 'open' AND v_step.state IN ('open', 'done', 'failed') OR t.state = 'armed' AND v_step.state IN ('undone', 'failed'));
    END LOOP;
    RETURN v_new;
END
$$;

-- note_steps: the job's row tells which grant has recorded a new step. p_new is what put_steps answered.
CREATE OR REPLACE FUNCTION tenure.note_steps(p_job tenure.job, p_new integer) RETURNS tenure.job
LANGUAGE plpgsql
AS $$
DECLARE
    v_token bigint := CASE p_new WHEN 2 THEN p_job.token WHEN 1 THEN coalesce(p_job.step_token, 0) ELSE p_job.step_token END;
BEGIN
    IF v_token IS DISTINCT FROM p_job.step_token THEN
        UPDATE tenure.job AS j SET step_token = v_token WHERE j.id = p_job.id;
        p_job.step_token := v_token;
    END IF;
    RETURN p_job;
END
$$;

-- record_steps: {"job_id", "token", "steps": [step], "jobs": as enqueue takes them} → the steps as they stand, in the order given; null
-- if the lease is lost. The jobs are enqueued if the first step is new.
CREATE OR REPLACE FUNCTION tenure.record_steps(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_job tenure.job;
    v_steps json := coalesce(p_request -> 'steps', '[]');
    v_is_first boolean;
BEGIN
    v_job := tenure.held_job(p_request, v_now);
    IF v_job.id IS NULL THEN
        RETURN NULL;
    END IF;
    v_is_first := NOT EXISTS (SELECT 1 FROM tenure.step AS s WHERE s.job_id = v_job.id AND s.key = v_steps -> 0 ->> 'key');
    PERFORM tenure.note_steps(v_job, tenure.put_steps(v_job.id, v_job.token, v_steps, v_now));
    IF p_request -> 'jobs' IS NOT NULL AND v_is_first THEN
        PERFORM tenure.refuse_cancelled_parent(v_job);
        PERFORM tenure.refuse_other_queues(v_job.id, p_request -> 'jobs');
        PERFORM tenure.put_jobs(p_request -> 'jobs' -> 'groups', false);
    END IF;
    RETURN (
        SELECT coalesce(json_agg(tenure.show_step(s) ORDER BY e.nth), '[]')
        FROM json_array_elements(v_steps) WITH ORDINALITY AS e(value, nth)
        JOIN tenure.step AS s ON s.job_id = v_job.id AND s.key = e.value ->> 'key'
    );
END
$$;

-- refuse_cancelled_parent: a job that was asked to stop gets no children any more.
CREATE OR REPLACE FUNCTION tenure.refuse_cancelled_parent(p_job tenure.job) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_job.cancel_requested_at IS NOT NULL THEN
        RAISE EXCEPTION 'Job % was asked to stop, so it gets no children any more. Nothing was created.', p_job.id USING ERRCODE = 'TN008';
    END IF;
END
$$;

-- show_step: [job_id, key, ordinal, kind, state, token, value as text, error, awaits, due_at, created_at, ended_at].
CREATE OR REPLACE FUNCTION tenure.show_step(p_step tenure.step) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT json_build_array(
        (p_step).job_id, (p_step).key, (p_step).ordinal, (p_step).kind, (p_step).state, (p_step).token, (p_step).value::text,
        (p_step).error, (p_step).awaits, tenure.to_us((p_step).due_at), tenure.to_us((p_step).created_at), tenure.to_us((p_step).ended_at))
$$;

-- granted_steps: what a job has behind it, for its grant: {"steps": [step], "more"}; as far as 256 KiB of values go.
-- A sleep whose time came while the job was queued is done.
CREATE OR REPLACE FUNCTION tenure.granted_steps(p_job_id uuid) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_object(
        'steps', coalesce(json_agg(tenure.show_step(s.step) ORDER BY s.ordinal) FILTER (WHERE s.bytes <= 262144), '[]'),
        'more', coalesce(bool_or(s.bytes > 262144), false))
    FROM (
        SELECT
            ROW(
                s.job_id, s.key, s.ordinal, s.kind,
                CASE WHEN s.kind = 'sleep' AND s.state = 'open' AND s.due_at <= tenure.now() THEN 'done' ELSE s.state END,
                s.token, s.value, s.error, s.awaits, s.due_at, s.created_at, s.ended_at)::tenure.step AS step,
            s.ordinal, sum(coalesce(octet_length(s.value::text), 0)) OVER (ORDER BY s.ordinal) AS bytes
        FROM tenure.step AS s
        WHERE s.job_id = p_job_id
    ) AS s
$$;

-- list_steps: {"job_id", "after": ordinal, "limit"} → steps in the order of their first record.
CREATE OR REPLACE FUNCTION tenure.list_steps(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(tenure.show_step(s.step) ORDER BY s.ordinal), '[]')
    FROM (
        SELECT t AS step, t.ordinal
        FROM tenure.step AS t
        WHERE t.job_id = tenure.as_uuid(p_request ->> 'job_id') AND t.ordinal > coalesce((p_request ->> 'after')::integer, 0)
            AND tenure.sees_job(tenure.as_uuid(p_request ->> 'job_id'))
        ORDER BY t.ordinal
        LIMIT tenure.page_limit(p_request)
    ) AS s
$$;

-- park: suspend a held job on open steps, all in the transaction of its settle. p_job is locked, its token checked. Answers its state.
--
-- Steps are written first, then their conditions are looked at: one that is met sends the job straight back to queued. Otherwise an event
-- asks the sweep to look once more when this has committed, because what makes a condition true may be committing at this very moment.
CREATE OR REPLACE FUNCTION tenure.park(
    p_job tenure.job, p_waiting_for text, p_delay double precision, p_steps json, p_groups json, p_now timestamptz
) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_job tenure.job;
    v_new integer := tenure.put_steps(p_job.id, p_job.token, p_steps, p_now);
    v_group json;
    v_step tenure.step;
    v_found record;
    v_awaits text[] := '{}';
    v_is_met boolean;
    v_due timestamptz := p_now + p_delay * interval '1 second';
BEGIN
    IF p_job.cancel_requested_at IS NULL AND tenure.is_past_deadline(p_job.id) THEN
        RETURN tenure.finish(
            tenure.note_steps(p_job, v_new), 'reject', 'deadline', 'The job was not done within the deadline that its handler declares.',
            NULL, NULL, p_now);
    END IF;
    IF p_job.cancel_requested_at IS NULL THEN
        FOR v_group IN SELECT e.value FROM json_array_elements(p_groups) AS e LOOP
            v_new := greatest(v_new, tenure.put_group(p_job, v_group, 0, json_array_length(v_group -> 'ids'), false, p_now));
        END LOOP;
    END IF;
    v_job := tenure.note_steps(p_job, v_new);
    IF p_job.cancel_requested_at IS NULL THEN
        -- A step that is given as open and stands closed was met before.
        v_is_met := EXISTS (
            SELECT 1
            FROM (
                SELECT e.value ->> 'key' AS key FROM json_array_elements(p_steps) AS e WHERE e.value ->> 'state' = 'open'
                UNION ALL
                SELECT e.value ->> 'step_key' FROM json_array_elements(p_groups) AS e
            ) AS g
            JOIN tenure.step AS s ON s.job_id = p_job.id AND s.key = g.key
            WHERE s.state <> 'open');
        -- The deadline ends every wait, whether or not this suspend names it.
        UPDATE tenure.step AS s SET token = p_job.token WHERE s.job_id = p_job.id AND s.key = '$deadline' AND s.state = 'open';
        FOR v_step IN SELECT * FROM tenure.step AS s WHERE s.job_id = p_job.id AND s.state = 'open' AND s.token = p_job.token ORDER BY s.ordinal LOOP
            -- One signal ends a wait; what else has come stays for the next one.
            IF v_step.awaits IS NOT NULL AND NOT (v_is_met AND v_step.awaits LIKE 'signal:%') THEN
                v_found := tenure.condition(v_step.awaits, p_job.id, p_now);
                IF v_found.is_met THEN
                    PERFORM tenure.close_step(v_step, v_found.state, v_found.value, p_now);
                    v_is_met := true;
                    CONTINUE;
                END IF;
                v_awaits := v_awaits || v_step.awaits;
            END IF;
            v_is_met := v_is_met OR coalesce(v_step.due_at <= p_now, false);
            v_due := least(v_due, v_step.due_at);
        END LOOP;
        IF v_is_met THEN
            PERFORM tenure.close_due_steps(ARRAY[p_job.id], p_now);
        ELSE
            PERFORM tenure.put_flow_event(
                CASE WHEN a.awaits LIKE 'budget:%' THEN 'budget' ELSE 'look' END, a.awaits, NULL,
                CASE WHEN a.awaits NOT LIKE 'budget:%' THEN p_job.id END)
            FROM (SELECT DISTINCT u.awaits FROM unnest(v_awaits) AS u(awaits)) AS a;
        END IF;
    END IF;
    RETURN tenure.finish(v_job, 'suspend', NULL, NULL, NULL, p_waiting_for, p_now, p_is_met => coalesce(v_is_met, false), p_due => v_due);
END
$$;

-- is_past_deadline: whether a job was granted with its deadline over, and is not being undone.
CREATE OR REPLACE FUNCTION tenure.is_past_deadline(p_job_id uuid) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (SELECT 1 FROM tenure.step AS s WHERE s.job_id = p_job_id AND s.key = '$deadline' AND s.state <> 'open')
        AND NOT EXISTS (SELECT 1 FROM tenure.step AS s WHERE s.job_id = p_job_id AND s.key = '$undoing')
$$;

-- close_step: a step's condition is met.
CREATE OR REPLACE FUNCTION tenure.close_step(p_step tenure.step, p_state text, p_value json, p_now timestamptz) RETURNS void
LANGUAGE sql
AS $$
    UPDATE tenure.step AS s
    SET state = p_state,
        value = p_value,
        ended_at = p_now
    WHERE s.job_id = p_step.job_id AND s.key = p_step.key AND s.state = 'open'
$$;

-- close_due_steps: open steps of these jobs whose time has come: a sleep is done, anything else has failed by its timeout.
CREATE OR REPLACE FUNCTION tenure.close_due_steps(p_ids uuid[], p_now timestamptz) RETURNS void
LANGUAGE sql
AS $$
    UPDATE tenure.step AS s
    SET state = CASE s.kind WHEN 'sleep' THEN 'done' ELSE 'failed' END,
        error = CASE s.kind WHEN 'sleep' THEN s.error ELSE 'timeout' END,
        ended_at = p_now
    WHERE s.job_id = ANY (p_ids) AND s.state = 'open' AND s.due_at <= p_now
$$;

-- signal: {"id", "key", "value", "actor", "scope": once|queue, "to": job id, "keep": seconds} → {"is_taken"}.
CREATE OR REPLACE FUNCTION tenure.signal(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_id uuid := coalesce((p_request ->> 'id')::uuid, gen_random_uuid());
    v_key text := p_request ->> 'key';
    v_scope text := coalesce(p_request ->> 'scope', 'once');
    v_to uuid;
    v_state text;
BEGIN
    IF coalesce(btrim(v_key), '') = '' OR length(v_key) > 300 OR v_scope NOT IN ('once', 'queue') THEN
        RAISE EXCEPTION 'A signal needs a key of 1 to 300 characters that is not blank, and the scope once or queue. Nothing was changed.' USING ERRCODE = 'TN007';
    ELSIF octet_length((p_request -> 'value')::text) > 1048576 THEN
        RAISE EXCEPTION 'Signal %: its value has % bytes, and 1,048,576 are the limit. Nothing was changed.',
            quote_literal(v_key), octet_length((p_request -> 'value')::text) USING ERRCODE = 'TN007';
    ELSIF NOT ((p_request ->> 'keep')::double precision > 0 AND (p_request ->> 'keep')::double precision <= 315360000) THEN
        RAISE EXCEPTION 'Signal %: it is kept for up to ten years, not % s. Nothing was changed.', quote_literal(v_key), p_request ->> 'keep' USING ERRCODE = 'TN007';
    ELSIF btrim(p_request ->> 'actor') = '' THEN
        RAISE EXCEPTION 'Signal %: actor is blank; it must say who sends this. Nothing was changed.', quote_literal(v_key) USING ERRCODE = 'TN007';
    END IF;
    IF p_request ->> 'to' IS NOT NULL THEN
        SELECT j.id, j.state INTO v_to, v_state
        FROM tenure.job AS j
        WHERE j.id = tenure.as_uuid(p_request ->> 'to') AND tenure.is_known(j.enqueued_by);
        IF NOT FOUND THEN
            RAISE EXCEPTION 'There is no job %, so the signal % reaches nothing. Nothing was changed.',
                p_request ->> 'to', quote_literal(v_key) USING ERRCODE = 'TN009';
        ELSIF v_state IN ('succeeded', 'failed', 'dead', 'cancelled') THEN
            RAISE EXCEPTION 'Job % has ended as %, so the signal % reaches nothing. Nothing was changed.',
                v_to, v_state, quote_literal(v_key) USING ERRCODE = 'TN008';
        END IF;
    END IF;
    DELETE FROM tenure.signal AS s WHERE s.key = v_key AND s.scope = 'once' AND s.job_id IS NOT DISTINCT FROM v_to AND s.expires_at <= v_now;
    INSERT INTO tenure.signal (id, key, scope, job_id, value, actor, created_at, expires_at)
    VALUES (
        v_id, v_key, v_scope, v_to, coalesce(p_request -> 'value', 'null'), coalesce(p_request ->> 'actor', 'tenure'), v_now,
        v_now + coalesce((p_request ->> 'keep')::double precision, 2592000) * interval '1 second'
    )
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM tenure.wake_on('signal:' || v_key, v_to);
        RETURN json_build_object('is_taken', true);
    END IF;
    RETURN json_build_object('is_taken', EXISTS (SELECT 1 FROM tenure.signal AS s WHERE s.id = v_id));
END
$$;

-- put_group: create children that a job waits for, with the group and its step; or a further page of them. p_job is locked, its token
-- checked. p_group: {"id", "step_key", "jobs": as enqueue takes them, "ids": the same jobs by position, "need", "tolerate", "fail_fast",
-- "window", "cancel_rest", "due"}. p_at is the position of the first of them, p_total how many there are to be, null if not known yet.
-- Without p_is_page a group whose step stands already is left as it is. Answers 2 if the step is new, else 0.
CREATE OR REPLACE FUNCTION tenure.put_group(p_job tenure.job, p_group json, p_at integer, p_total integer, p_is_page boolean, p_now timestamptz)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    v_id uuid := (p_group ->> 'id')::uuid;
    v_key text := p_group ->> 'step_key';
    v_ids uuid[] := ARRAY(SELECT e.value::uuid FROM json_array_elements_text(p_group -> 'ids') WITH ORDINALITY AS e(value, nth) ORDER BY e.nth);
    v_count integer := cardinality(v_ids);
    v_group tenure.job_group;
    v_new integer;
    v_taken json;
BEGIN
    IF v_count > 1000 THEN
        RAISE EXCEPTION 'A group is filled by pages of up to 1000 jobs, not %. Nothing was created.', v_count USING ERRCODE = 'TN007';
    ELSIF least((p_group ->> 'need')::integer, (p_group ->> 'tolerate')::integer, (p_group ->> 'window')::integer - 1) < 0 THEN
        RAISE EXCEPTION 'Group %: tolerate and need cannot be negative, and a window has room for at least 1. Nothing was created.',
            quote_literal(v_key) USING ERRCODE = 'TN007';
    END IF;
    PERFORM tenure.refuse_cancelled_parent(p_job);
    v_new := tenure.put_steps(
        p_job.id, p_job.token,
        json_build_array(json_build_object(
            'key', v_key, 'kind', 'group', 'state', 'open', 'awaits', 'group:' || v_id, 'due', (p_group ->> 'due')::double precision)),
        p_now);
    IF v_new = 0 AND NOT p_is_page THEN
        RETURN 0;
    END IF;
    INSERT INTO tenure.job_group (id, parent_id, step_key, need, tolerate, fail_fast, window_size, released, cancel_rest, created_at)
    SELECT v_id, p_job.id, v_key, g.need, coalesce(g.tolerate, 0), coalesce(g.fail_fast, false), g.window, g.window, coalesce(g.cancel_rest, false), p_now
    FROM json_to_record(p_group) AS g(need integer, tolerate integer, fail_fast boolean, "window" integer, cancel_rest boolean)
    WHERE v_new > 0
    ON CONFLICT DO NOTHING;
    SELECT * INTO v_group FROM tenure.job_group AS g WHERE g.id = v_id AND g.parent_id = p_job.id AND g.step_key = v_key FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'Job %: step % stands for another group. Nothing was created.', p_job.id, quote_literal(v_key) USING ERRCODE = 'TN007';
    ELSIF p_at + v_count <= v_group.made AND (v_count > 0 OR v_group.total IS NOT NULL) THEN
        v_count := 0;  -- a repeat
    ELSIF p_at <> v_group.made THEN
        RAISE EXCEPTION 'Group %: % children were made, so the next page begins there, not at %. Nothing was created.',
            v_id, v_group.made, p_at USING ERRCODE = 'TN007';
    END IF;
    IF v_count > 0 THEN
        PERFORM tenure.refuse_other_queues(p_job.id, p_group -> 'jobs');
        v_taken := tenure.put_jobs(p_group -> 'jobs' -> 'groups', false, v_id);
        IF v_taken IS NOT NULL THEN
            RAISE EXCEPTION 'A child of job % has a key that another job holds. Nothing was created. Leave the key out, or make it the child''s own.',
                p_job.id USING ERRCODE = 'TN004', DETAIL = v_taken::text;
        END IF;
        INSERT INTO tenure.group_member (group_id, position, job_id)
        SELECT v_id, p_at + u.nth - 1, u.id FROM unnest(v_ids) WITH ORDINALITY AS u(id, nth);
        IF v_group.released < p_at + v_count THEN
            -- Beyond the window: let go by the sweep, as others end.
            UPDATE tenure.job AS j
            SET state = 'waiting',
                waiting_for = 'group:' || v_id,
                place_at = j.run_at,
                run_at = 'infinity',
                is_due = false
            FROM unnest(v_ids) WITH ORDINALITY AS u(id, nth)
            WHERE j.id BETWEEN u.id AND u.id AND p_at + u.nth - 1 >= v_group.released;
        END IF;
    END IF;
    UPDATE tenure.job_group AS g SET made = g.made + v_count, total = coalesce(g.total, p_total) WHERE g.id = v_id RETURNING * INTO v_group;
    IF v_group.made > v_group.total THEN
        RAISE EXCEPTION 'Group % was to have % children and has % now. Nothing was created.', v_id, v_group.total, v_group.made USING ERRCODE = 'TN007';
    END IF;
    UPDATE tenure.step AS s
    SET value = format('{"group":"%s","made":%s}', v_id, v_group.made)::json
    WHERE s.job_id = p_job.id AND s.key = v_key AND s.state = 'open';
    PERFORM tenure.end_group(v_group, p_now);  -- children may have ended before it was complete
    RETURN v_new;
END
$$;

-- fill_group: a page of a large group. {"job_id", "token", "group": as put_group takes it, "at", "total"} → the group, null if the lease
-- is lost.
CREATE OR REPLACE FUNCTION tenure.fill_group(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_job tenure.job := tenure.held_job(p_request, v_now);
BEGIN
    IF v_job.id IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM tenure.note_steps(v_job, tenure.put_group(
        v_job, p_request -> 'group', coalesce((p_request ->> 'at')::integer, 0), (p_request ->> 'total')::integer, true, v_now));
    RETURN (SELECT tenure.show_group(g) FROM tenure.job_group AS g WHERE g.id = (p_request -> 'group' ->> 'id')::uuid);
END
$$;

-- held_job: the job of a request with "job_id" and "token", locked; a row of nulls if the lease is lost or another login's.
CREATE OR REPLACE FUNCTION tenure.held_job(p_request json, p_now timestamptz) RETURNS tenure.job
LANGUAGE sql
AS $$
    SELECT j.*
    FROM tenure.job AS j
    WHERE j.id = tenure.as_uuid(p_request ->> 'job_id') AND j.token = (p_request ->> 'token')::bigint
        AND j.state IN ('leased', 'running') AND j.lease_until > tenure.expiry_cutoff(p_now) AND j.lease_login = tenure.login()
    FOR NO KEY UPDATE
$$;

CREATE OR REPLACE FUNCTION tenure.show_group(p_group tenure.job_group) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT json_build_array(
        (p_group).id, (p_group).parent_id, (p_group).step_key, (p_group).state, (p_group).total, (p_group).made, (p_group).ended,
        (p_group).failed, (p_group).cancelled, (p_group).need, (p_group).tolerate, (p_group).fail_fast, (p_group).window_size,
        (p_group).cancel_rest, tenure.to_us((p_group).created_at), tenure.to_us((p_group).ended_at))
$$;

-- get_group: {"group_id"} → [id, parent_id, step_key, state, total, made, ended, failed, cancelled, need, tolerate, fail_fast, window,
-- cancel_rest, created_at, ended_at], null if there is none.
CREATE OR REPLACE FUNCTION tenure.get_group(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT tenure.show_group(g) FROM tenure.job_group AS g WHERE g.id = tenure.as_uuid(p_request ->> 'group_id') AND tenure.sees_job(g.parent_id) $$;

-- list_children: {"group_id", "after": position, "limit", "states"} → [position, job_id, kind, state, result, summary, class, error,
-- dead letter] for each, by position.
CREATE OR REPLACE FUNCTION tenure.list_children(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(c.line ORDER BY c.position), '[]')
    FROM (
        SELECT m.position, json_build_array(
            m.position, m.job_id, j.kind, j.state, j.result, j.result_summary, j.failure_class, j.last_error,
            (SELECT d.id FROM tenure.dead_letter AS d WHERE d.job_id = m.job_id ORDER BY d.token DESC LIMIT 1)) AS line
        FROM tenure.group_member AS m
        LEFT JOIN tenure.job AS j ON j.id = m.job_id
        WHERE m.group_id = tenure.as_uuid(p_request ->> 'group_id') AND m.position > coalesce((p_request ->> 'after')::integer, -1)
            AND (tenure.text_list(p_request -> 'states') IS NULL OR j.state = ANY (tenure.text_list(p_request -> 'states')))
            AND tenure.sees_job((SELECT g.parent_id FROM tenure.job_group AS g WHERE g.id = tenure.as_uuid(p_request ->> 'group_id')))
        ORDER BY m.position
        LIMIT tenure.page_limit(p_request)
    ) AS c
$$;

-- tell_group: children have ended, or come back to life (a negative number). Nothing is locked: the sweep counts.
CREATE OR REPLACE FUNCTION tenure.tell_group(p_group_id uuid, p_state text, p_number integer) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO tenure.flow_event (what, group_id, ended, failed, cancelled)
    VALUES (
        'end', p_group_id, p_number, CASE WHEN p_state IN ('dead', 'failed') THEN p_number ELSE 0 END,
        CASE p_state WHEN 'cancelled' THEN p_number ELSE 0 END
    );
    PERFORM set_config('tenure.has_flow_events', 'on', true);
END
$$;

-- end_group: close a group that is over, and answer whether it was. p_group is locked, as it stands now.
CREATE OR REPLACE FUNCTION tenure.end_group(p_group tenure.job_group, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_group.state <> 'open' OR p_group.made IS DISTINCT FROM p_group.total OR NOT (
        p_group.ended >= p_group.total
        OR coalesce(p_group.ended - p_group.failed - p_group.cancelled >= p_group.need, false)
        OR p_group.fail_fast AND p_group.failed + p_group.cancelled > coalesce(p_group.total - p_group.need, p_group.tolerate)
    ) THEN
        RETURN false;
    END IF;
    UPDATE tenure.job_group AS g
    SET state = CASE
            WHEN g.need IS NULL AND g.failed + g.cancelled <= g.tolerate OR g.ended - g.failed - g.cancelled >= g.need THEN 'done'
            ELSE 'failed'
        END,
        ended_at = p_now
    WHERE g.id = p_group.id;
    IF p_group.cancel_rest AND p_group.ended < p_group.total THEN
        PERFORM tenure.put_flow_event('cancel', NULL, p_group.id, NULL, json_build_object('actor', 'tenure', 'reason', 'its group is over'));
    END IF;
    RETURN true;
END
$$;

-- fold_groups: count the ends that events tell of, by group; say which groups are over, and let up to p_limit children go that wait for room.
-- Locks the groups by id. p_ends: [{"group_id", "ended", "failed", "cancelled"}].
CREATE OR REPLACE FUNCTION tenure.fold_groups(p_ends json, p_limit integer, p_now timestamptz, OUT over text[], OUT released uuid[])
LANGUAGE plpgsql
AS $$
DECLARE
    v_ids uuid[] := ARRAY(SELECT e.group_id FROM json_to_recordset(p_ends) AS e(group_id uuid));
    v_group tenure.job_group;
    v_wanted integer;
    v_until integer;
    v_left integer := p_limit;
BEGIN
    over := '{}';
    released := '{}';
    PERFORM 1 FROM tenure.job_group AS g WHERE g.id = ANY (v_ids) ORDER BY g.id FOR UPDATE;
    FOR v_group IN
        UPDATE tenure.job_group AS g
        SET ended = g.ended + e.ended,
            failed = g.failed + e.failed,
            cancelled = g.cancelled + e.cancelled
        FROM json_to_recordset(p_ends) AS e(group_id uuid, ended integer, failed integer, cancelled integer)
        WHERE g.id BETWEEN e.group_id AND e.group_id
        RETURNING g.*
    LOOP
        IF tenure.end_group(v_group, p_now) THEN
            over := over || ('group:' || v_group.id);
        END IF;
        v_wanted := v_group.ended + v_group.window_size;
        CONTINUE WHEN coalesce(v_wanted <= v_group.released, true);
        v_until := least(v_wanted, v_group.released + v_left);
        v_left := v_left - (v_until - v_group.released);
        released := released || ARRAY(
            SELECT m.job_id FROM tenure.group_member AS m
            WHERE m.group_id = v_group.id AND m.position >= v_group.released AND m.position < v_until);
        UPDATE tenure.job_group AS g SET released = v_until WHERE g.id = v_group.id;
        IF v_until < v_wanted THEN
            PERFORM tenure.put_flow_event('group', NULL, v_group.id);
        END IF;
    END LOOP;
END
$$;

-- cancel_children: cancel those of a group that have not ended, 250 places at a time; the next event says where this page ended. None is let
-- go any more. Answers how many were cancelled or asked to stop.
CREATE OR REPLACE FUNCTION tenure.cancel_children(p_event tenure.flow_event, p_now timestamptz) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    v_after integer := coalesce((p_event.detail ->> 'after')::integer, -1);
    v_ids uuid[];
BEGIN
    UPDATE tenure.job_group AS g SET released = NULL WHERE g.id = p_event.group_id AND g.released IS NOT NULL;
    v_ids := ARRAY(
        SELECT j.id
        FROM tenure.group_member AS m
        JOIN tenure.job AS j ON j.id BETWEEN m.job_id AND m.job_id
        WHERE m.group_id = p_event.group_id AND m.position > v_after AND m.position <= v_after + 250
            AND j.finished_at IS NULL AND j.cancel_requested_at IS NULL
        ORDER BY m.job_id
    );
    PERFORM tenure.lock_runs(v_ids);
    PERFORM tenure.cancel_job(u.id, p_event.detail ->> 'actor', p_event.detail ->> 'reason', true, p_now) FROM unnest(v_ids) AS u(id);
    IF EXISTS (SELECT 1 FROM tenure.group_member AS m WHERE m.group_id = p_event.group_id AND m.position > v_after + 250) THEN
        PERFORM tenure.put_flow_event('cancel', NULL, p_event.group_id, NULL, json_build_object(
            'actor', p_event.detail ->> 'actor', 'reason', p_event.detail ->> 'reason', 'after', v_after + 250));
    END IF;
    RETURN cardinality(v_ids);
END
$$;

-- sweep_flow: deal with events. {"limit", "by_time"} → {"events", "jobs", "more"}. In a transaction of its own, one sort of work in each: it
-- waits for the rows of groups and of waiting jobs, and holds nothing that an exchange waits for. The oldest event says which sort, so
-- that none waits for the others to run dry.
CREATE OR REPLACE FUNCTION tenure.sweep_flow(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_limit integer := coalesce((p_request ->> 'limit')::integer, 1000);
    v_oldest tenure.flow_event;
    v_events integer := 0;
    v_awaits text[];
    v_looking uuid[];
    v_ends json;
    v_groups record;
    v_jobs integer := 0;
BEGIN
    IF NOT coalesce((p_request ->> 'by_time')::boolean, false) THEN
        SELECT * INTO v_oldest FROM tenure.flow_event AS e ORDER BY e.seq LIMIT 1 FOR UPDATE SKIP LOCKED;
    END IF;
    IF v_oldest.seq IS NULL THEN
        RETURN tenure.sweep_by_time(v_limit, v_now);
    ELSIF v_oldest.what = 'cancel' THEN
        DELETE FROM tenure.flow_event AS e WHERE e.seq = v_oldest.seq;
        v_events := 1;
        v_jobs := tenure.cancel_children(v_oldest, v_now);
    ELSIF v_oldest.what = 'budget' THEN
        DELETE FROM tenure.flow_event AS e
        WHERE e.seq = ANY (ARRAY(
            SELECT o.seq FROM tenure.flow_event AS o WHERE o.what = 'budget' AND o.awaits = v_oldest.awaits ORDER BY o.seq LIMIT v_limit FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS v_events = ROW_COUNT;
        v_jobs := tenure.wake_budget(v_oldest.awaits, v_limit, v_now);
    ELSE
        WITH gone AS (
            DELETE FROM tenure.flow_event AS e
            WHERE e.seq = ANY (ARRAY(
                SELECT o.seq FROM tenure.flow_event AS o WHERE o.what NOT IN ('cancel', 'budget') ORDER BY o.seq LIMIT v_limit FOR UPDATE SKIP LOCKED))
            RETURNING e.what, e.awaits, e.group_id, e.job_id, e.ended, e.failed, e.cancelled
        )
        SELECT count(*), array_agg(DISTINCT g.awaits) FILTER (WHERE g.what = 'look' AND g.job_id IS NULL),
            array_agg(DISTINCT g.job_id) FILTER (WHERE g.what = 'look' AND g.job_id IS NOT NULL), (
                SELECT json_agg(t)
                FROM (
                    SELECT e.group_id, sum(e.ended) AS ended, sum(e.failed) AS failed, sum(e.cancelled) AS cancelled
                    FROM gone AS e
                    WHERE e.group_id IS NOT NULL
                    GROUP BY e.group_id
                ) AS t
            )
        INTO v_events, v_awaits, v_looking, v_ends
        FROM gone AS g;
        IF v_ends IS NOT NULL THEN
            v_groups := tenure.fold_groups(v_ends, v_limit, v_now);
            v_jobs := tenure.wake_met(coalesce(v_awaits, '{}') || v_groups.over, coalesce(v_looking, '{}'), v_groups.released, v_limit, v_now);
        ELSE
            v_jobs := tenure.wake_met(coalesce(v_awaits, '{}'), coalesce(v_looking, '{}'), '{}', v_limit, v_now);
        END IF;
    END IF;
    RETURN json_build_object('events', v_events, 'jobs', v_jobs, 'more', EXISTS (SELECT 1 FROM tenure.flow_event));
END
$$;

-- sweep_by_time: what no event tells of: reservations that were left behind, budgets whose window is over, approvals that expire. Answers as
-- sweep_flow does.
CREATE OR REPLACE FUNCTION tenure.sweep_by_time(p_limit integer, p_now timestamptz) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_left integer := tenure.end_left_spends(p_limit);
    v_events integer;
BEGIN
    IF v_left > 0 OR tenure.turn_budgets(p_limit, p_now) THEN
        RETURN json_build_object('events', 0, 'jobs', 0, 'more', true);
    END IF;
    v_events := tenure.expire_approvals(p_limit, p_now);  -- their jobs are woken by the events that it leaves, seen by the next statement
    RETURN json_build_object('events', v_events, 'jobs', 0, 'more', EXISTS (SELECT 1 FROM tenure.flow_event));
END
$$;

-- wake_met: close the steps whose condition is among these and is met, and wake their jobs; up to p_limit jobs in all, and an event for
-- the rest of a condition. p_looking: jobs at whose conditions, whatever they are, one has to look. Only steps count that the job's last
-- suspend has named. p_released: children that are let go along, so that all rows are locked in one order. Answers how many jobs were queued.
CREATE OR REPLACE FUNCTION tenure.wake_met(p_awaits text[], p_looking uuid[], p_released uuid[], p_limit integer, p_now timestamptz)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    v_share integer := greatest(p_limit / greatest(cardinality(p_awaits), 1), 1);
    v_ids uuid[];
    v_step tenure.step;
    v_found record;
    v_woken uuid[] := p_released;
    v_counts jsonb := '{}';
BEGIN
    SELECT array_agg(DISTINCT w.job_id) INTO v_ids
    FROM unnest(p_awaits) AS a(awaits)
    CROSS JOIN LATERAL (
        SELECT s.job_id
        FROM tenure.step AS s
        JOIN tenure.job AS j ON j.id BETWEEN s.job_id AND s.job_id AND j.token = s.token AND j.state || '' = 'waiting'
        WHERE s.awaits = a.awaits AND s.state = 'open'
        ORDER BY s.created_at, s.job_id
        LIMIT v_share
    ) AS w;
    v_ids := ARRAY(SELECT j.id FROM tenure.job AS j WHERE j.id = ANY (v_ids || p_looking || p_released) AND j.state || '' = 'waiting' ORDER BY j.id FOR UPDATE);
    FOR v_step IN
        SELECT s.*
        FROM tenure.step AS s
        JOIN tenure.job AS j ON j.id BETWEEN s.job_id AND s.job_id AND j.token = s.token
        WHERE s.job_id = ANY (v_ids) AND s.state || '' = 'open' AND s.awaits IS NOT NULL AND (s.awaits = ANY (p_awaits) OR s.job_id = ANY (p_looking))
        ORDER BY s.created_at, s.job_id
    LOOP
        IF v_step.awaits LIKE 'signal:%' AND v_step.job_id = ANY (v_woken) THEN
            -- One signal ends a wait; what else has come stays for the next one.
            v_counts := v_counts || jsonb_build_object(v_step.awaits, coalesce((v_counts ->> v_step.awaits)::integer, 0) + 1);
            CONTINUE;
        END IF;
        v_found := tenure.condition(v_step.awaits, v_step.job_id, p_now);
        IF v_found.is_met THEN
            PERFORM tenure.close_step(v_step, v_found.state, v_found.value, p_now);
            v_woken := v_woken || v_step.job_id;
            v_counts := v_counts || jsonb_build_object(v_step.awaits, coalesce((v_counts ->> v_step.awaits)::integer, 0) + 1);
        ELSIF v_step.awaits LIKE 'signal:%' AND EXISTS (
            SELECT 1 FROM tenure.signal AS s
            WHERE s.key = substr(v_step.awaits, 8) AND s.taken_by IS NULL AND coalesce(s.job_id = v_step.job_id, true) AND s.expires_at > p_now
        ) THEN
            -- Another transaction is taking it; should that one fail, it is still to be had.
            PERFORM tenure.put_flow_event('look', v_step.awaits, NULL, v_step.job_id);
        ELSIF v_step.awaits LIKE 'job:%' AND NOT tenure.watch_job(tenure.as_uuid(substr(v_step.awaits, 5)))
            OR v_step.awaits LIKE 'memo:%' AND NOT tenure.is_taken(substr(v_step.awaits, 6))
        THEN
            PERFORM tenure.put_flow_event('look', v_step.awaits, NULL, v_step.job_id);  -- it is changing at this very moment
        END IF;
    END LOOP;
    PERFORM tenure.put_flow_event('look', c.key)
    FROM jsonb_each_text(v_counts) AS c
    WHERE c.value::integer >= v_share AND c.key = ANY (p_awaits);
    RETURN cardinality(tenure.queue_waiting(v_woken, p_now));
END
$$;

-- forget_steps: {"job_id", "key", "and_later", "actor", "reason"} → the keys that were forgotten, by their order. An operator's act.
CREATE OR REPLACE FUNCTION tenure.forget_steps(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_job tenure.job;
    v_ordinal integer;
    v_keys text[];
BEGIN
    SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = tenure.as_uuid(p_request ->> 'job_id') FOR UPDATE;
    SELECT s.ordinal INTO v_ordinal FROM tenure.step AS s WHERE s.job_id = v_job.id AND s.key = p_request ->> 'key';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'There is no step % of a job %, so nothing was forgotten.',
            quote_literal(p_request ->> 'key'), p_request ->> 'job_id' USING ERRCODE = 'TN009';
    ELSIF v_job.state IN ('leased', 'running') THEN
        RAISE EXCEPTION 'Job % is held by a worker, which goes by its steps. Cancel it, or wait until it ends. Nothing was forgotten.',
            v_job.id USING ERRCODE = 'TN008';
    END IF;
    v_keys := tenure.drop_steps(
        v_job.id, v_ordinal, CASE WHEN (p_request ->> 'and_later')::boolean THEN 2147483647 ELSE v_ordinal END);
    PERFORM tenure.write_audit(
        v_now, p_request ->> 'actor', 'forget_steps', v_job.id::text, p_request ->> 'reason', json_build_object('keys', v_keys));
    PERFORM tenure.queue_waiting(ARRAY[v_job.id], v_now);
    RETURN array_to_json(v_keys);
END
$$;

-- drop_steps: remove steps of a job by their order, with the groups that they stand for. Answers their keys.
CREATE OR REPLACE FUNCTION tenure.drop_steps(p_job_id uuid, p_first integer, p_last integer) RETURNS text[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_keys text[];
BEGIN
    WITH gone AS (
        DELETE FROM tenure.step AS s WHERE s.job_id = p_job_id AND s.ordinal BETWEEN p_first AND p_last RETURNING s.key, s.ordinal
    )
    SELECT coalesce(array_agg(g.key ORDER BY g.ordinal), '{}') INTO v_keys FROM gone AS g;
    DELETE FROM tenure.group_member AS m USING tenure.job_group AS g
    WHERE g.parent_id = p_job_id AND g.step_key = ANY (v_keys) AND m.group_id = g.id;
    DELETE FROM tenure.job_group AS g WHERE g.parent_id = p_job_id AND g.step_key = ANY (v_keys);
    UPDATE tenure.approval AS a
    SET state = 'void',
        why = 'forgotten',
        decided_at = coalesce(a.decided_at, tenure.now())
    WHERE a.job_id = p_job_id AND a.step_key = ANY (v_keys) AND a.state <> 'void';
    RETURN v_keys;
END
$$;

-- undo_instead: whether a job that would end badly has something to undo first. Then the end that it is to have is recorded as the step
-- `$undoing`, and the caller queues it. p_job has steps, and is locked.
CREATE OR REPLACE FUNCTION tenure.undo_instead(p_job tenure.job, p_state text, p_class text, p_error text, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tenure.step AS s WHERE s.job_id = p_job.id AND s.key = '$undoing')
        OR NOT EXISTS (SELECT 1 FROM tenure.step AS s WHERE s.job_id = p_job.id AND s.kind = 'undo' AND s.state = 'armed')
    THEN
        RETURN false;
    END IF;
    PERFORM tenure.put_steps(p_job.id, p_job.token, json_build_array(json_build_object('key', '$undoing', 'value', json_build_object(
        'end', CASE p_state WHEN 'cancelled' THEN 'cancelled' ELSE 'failed' END, 'error', p_error, 'class', p_class))), p_now);
    RETURN true;
END
$$;

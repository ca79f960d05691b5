-- Budgets: reserve before, settle after. store/budgets.py is the specification.
--
-- Order of locks: the job, then its rows of spend, then budgets by rising id. Whatever makes room changes the budget's row first and looks for
-- waiting jobs afterwards; the sweep locks that row before it looks how much room there is. So one of the two sees the other.

-- budget_name: what a job waits for.
CREATE OR REPLACE FUNCTION tenure.budget_name(p_scope text, p_unit text, p_per text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT 'budget:' || p_scope || ':' || p_unit || ':' || p_per $$;

-- budget_window: the window around a moment, in UTC; nulls for total.
CREATE OR REPLACE FUNCTION tenure.budget_window(p_per text, p_now timestamptz, OUT window_from timestamptz, OUT window_until timestamptz)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT w.start AT TIME ZONE 'UTC', (w.start + ('1 ' || nullif(p_per, 'total'))::interval) AT TIME ZONE 'UTC'
    FROM (SELECT date_trunc(nullif(p_per, 'total'), p_now AT TIME ZONE 'UTC') AS start) AS w
$$;

-- turned_budget: a budget in the window of now.
CREATE OR REPLACE FUNCTION tenure.turned_budget(p_budget tenure.budget, p_now timestamptz) RETURNS tenure.budget
LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
DECLARE
    v_window record;
BEGIN
    IF p_budget.window_until <= p_now THEN
        v_window := tenure.budget_window(p_budget.per, p_now);
        p_budget.used := 0;
        p_budget.reserved := 0;
        p_budget.window_from := v_window.window_from;
        p_budget.window_until := v_window.window_until;
    END IF;
    RETURN p_budget;
END
$$;

-- job_scopes: the scopes of budgets that concern a job.
CREATE OR REPLACE FUNCTION tenure.job_scopes(p_job tenure.job) RETURNS text[]
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT ARRAY[
        'all', 'queue:' || (p_job).queue, 'kind:' || (p_job).kind, 'tenant:' || (p_job).tenant, 'workflow:' || (p_job).workflow_id,
        'job:' || (p_job).id]
$$;

-- lock_budgets: lock the budgets of these scopes by rising id, and begin windows anew that have ended. Answers their ids: one that is made
-- meanwhile is none of them, and does not concern what is reserved under these locks.
CREATE OR REPLACE FUNCTION tenure.lock_budgets(p_scopes text[], p_now timestamptz) RETURNS uuid[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_ids uuid[] := ARRAY(SELECT b.id FROM tenure.budget AS b WHERE b.scope = ANY (p_scopes) ORDER BY b.id FOR NO KEY UPDATE);
BEGIN
    PERFORM tenure.turn_locked(ARRAY(SELECT b.id FROM tenure.budget AS b WHERE b.id = ANY (v_ids) AND b.window_until <= p_now), p_now);
    RETURN v_ids;
END
$$;

-- turn_locked: begin the windows of budgets anew that the caller has locked. A new window makes room, so those who wait are told; but a budget
-- that escalates lets go only by a raise.
CREATE OR REPLACE FUNCTION tenure.turn_locked(p_ids uuid[], p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_names text[];
BEGIN
    IF cardinality(p_ids) > 0 THEN
        WITH turned AS (
            UPDATE tenure.budget AS b
            SET used = 0,
                reserved = 0,
                window_from = (tenure.budget_window(b.per, p_now)).window_from,
                window_until = (tenure.budget_window(b.per, p_now)).window_until
            WHERE b.id = ANY (p_ids)
            RETURNING b.scope, b.unit, b.per, b.on_empty
        )
        SELECT array_agg(tenure.budget_name(t.scope, t.unit, t.per)) INTO v_names FROM turned AS t WHERE t.on_empty <> 'escalate';
        PERFORM tenure.tell_budgets(v_names);
    END IF;
END
$$;

-- turn_budgets: begin windows anew that have ended and that jobs wait for, up to p_limit. Whether there was one.
CREATE OR REPLACE FUNCTION tenure.turn_budgets(p_limit integer, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_ids uuid[];
BEGIN
    v_ids := ARRAY(
        SELECT b.id
        FROM tenure.budget AS b
        WHERE b.window_until <= p_now AND b.on_empty <> 'escalate'
            AND EXISTS (SELECT 1 FROM tenure.step AS s WHERE s.awaits = tenure.budget_name(b.scope, b.unit, b.per) AND s.state = 'open')
        ORDER BY b.id
        LIMIT p_limit
        FOR NO KEY UPDATE SKIP LOCKED
    );
    PERFORM tenure.turn_locked(v_ids, p_now);
    RETURN cardinality(v_ids) > 0;
END
$$;

-- hold_budgets: reserve amounts in every budget that concerns a job, or in none: then the first that refuses is answered, else a row of nulls.
-- p_budgets are locked and in the window of now, and no others are looked at. A unit without an amount stands for a cost that is not known: it fits while anything is left,
-- and reserves all of that.
CREATE OR REPLACE FUNCTION tenure.hold_budgets(
    p_job tenure.job, p_token bigint, p_key text, p_amounts json, p_budgets uuid[], p_state text, p_now timestamptz
) RETURNS tenure.budget
LANGUAGE plpgsql
AS $$
DECLARE
    v_refuses tenure.budget;
BEGIN
    SELECT * INTO v_refuses
    FROM tenure.budget AS b
    WHERE b.id = ANY (p_budgets) AND b.scope = ANY (tenure.job_scopes(p_job))
        AND CASE
            WHEN p_amounts ->> b.unit IS NULL THEN b.cap - b.used - b.reserved <= 0
            ELSE (p_amounts ->> b.unit)::bigint > greatest(0, b.cap - b.used - b.reserved)
        END
    ORDER BY b.scope COLLATE "C", b.unit, b.per
    LIMIT 1;
    IF v_refuses.id IS NULL THEN
        INSERT INTO tenure.spend (job_id, token, key, budget_id, state, reserved, is_rest, window_from, at)
        SELECT p_job.id, p_token, p_key, b.id, p_state, coalesce((p_amounts ->> b.unit)::bigint, b.cap - b.used - b.reserved),
            p_amounts ->> b.unit IS NULL, b.window_from, p_now
        FROM tenure.budget AS b
        WHERE b.id = ANY (p_budgets) AND b.scope = ANY (tenure.job_scopes(p_job));
        UPDATE tenure.budget AS b
        SET reserved = coalesce(b.reserved + (p_amounts ->> b.unit)::bigint, b.cap - b.used)
        WHERE b.id = ANY (p_budgets) AND b.scope = ANY (tenure.job_scopes(p_job)) AND (p_amounts ->> b.unit IS NULL OR (p_amounts ->> b.unit)::bigint > 0);
    END IF;
    RETURN v_refuses;
END
$$;

-- owed_budgets: of the budgets p_budgets those that a key has to pay which is paid once: all, unless an earlier attempt has settled it well;
-- then those whose rest was given back when the job began to wait.
CREATE OR REPLACE FUNCTION tenure.owed_budgets(p_job_id uuid, p_key text, p_budgets uuid[]) RETURNS uuid[]
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN count(*) FILTER (WHERE s.state = 'done') = 0 THEN p_budgets ELSE ARRAY(
        SELECT b.id FROM unnest(p_budgets) AS b(id)
        INTERSECT
        SELECT o.budget_id FROM tenure.spend AS o
        WHERE o.job_id = p_job_id AND o.key = p_key AND o.is_rest AND o.state IN ('held', 'broken')
        EXCEPT
        SELECT o.budget_id FROM tenure.spend AS o WHERE o.job_id = p_job_id AND o.key = p_key AND o.state = 'done'
    ) END
    FROM tenure.spend AS s
    WHERE s.job_id = p_job_id AND s.key = p_key
$$;

-- tell_budgets: these budgets have more room now. An event for each that a job waits for; the rows were changed before.
CREATE OR REPLACE FUNCTION tenure.tell_budgets(p_names text[]) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_name text;
    v_is_told boolean := false;
BEGIN
    FOR v_name IN
        SELECT DISTINCT u.name
        FROM unnest(p_names) AS u(name)
        WHERE EXISTS (SELECT 1 FROM tenure.step AS s WHERE s.awaits = u.name AND s.state = 'open')
    LOOP
        PERFORM tenure.put_flow_event('budget', v_name);
        v_is_told := true;
    END LOOP;
    RETURN v_is_told;
END
$$;

-- end_spends: settle rows of spend that the caller has locked: [{"job_id", "token", "key", "budget_id", "used", "state"}], where a state of null
-- removes the row. Answers the names of the budgets that have more room now.
CREATE OR REPLACE FUNCTION tenure.end_spends(p_ends json) RETURNS text[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_end record;
    v_name text;
    v_names text[] := '{}';
BEGIN
    PERFORM 1
    FROM tenure.budget AS b
    WHERE b.id IN (SELECT e.budget_id FROM json_to_recordset(p_ends) AS e(budget_id uuid))
    ORDER BY b.id
    FOR NO KEY UPDATE;
    FOR v_end IN
        SELECT s.job_id, s.token, s.key, s.budget_id, s.window_from, e.used, e.state,
            CASE WHEN s.state = 'broken' THEN 0 ELSE -s.reserved END AS less_reserved,
            CASE WHEN s.state = 'broken' THEN e.used - s.used ELSE e.used END AS more_used
        FROM json_to_recordset(p_ends) AS e(job_id uuid, token bigint, key text, budget_id uuid, used bigint, state text)
        JOIN tenure.spend AS s ON s.job_id = e.job_id AND s.token = e.token AND s.key = e.key AND s.budget_id = e.budget_id
    LOOP
        IF v_end.state IS NULL THEN
            DELETE FROM tenure.spend AS s
            WHERE s.job_id = v_end.job_id AND s.token = v_end.token AND s.key = v_end.key AND s.budget_id = v_end.budget_id;
        ELSE
            UPDATE tenure.spend AS s
            SET state = v_end.state,
                used = v_end.used
            WHERE s.job_id = v_end.job_id AND s.token = v_end.token AND s.key = v_end.key AND s.budget_id = v_end.budget_id;
        END IF;
        UPDATE tenure.budget AS b
        SET reserved = b.reserved + v_end.less_reserved,
            used = b.used + v_end.more_used
        WHERE b.id = v_end.budget_id AND b.window_from IS NOT DISTINCT FROM v_end.window_from
        RETURNING tenure.budget_name(b.scope, b.unit, b.per) INTO v_name;
        IF FOUND AND v_end.less_reserved + v_end.more_used < 0 THEN
            v_names := v_names || v_name;
        END IF;
    END LOOP;
    RETURN v_names;
END
$$;

-- show_budget: [scope, unit, per, limit, used, reserved, on_empty, window_from, window_until, jobs that wait, updated_at, since when they wait].
CREATE OR REPLACE FUNCTION tenure.show_budget(p_budget tenure.budget, p_now timestamptz) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_array(
        t.scope, t.unit, t.per, t.cap, t.used, t.reserved, t.on_empty, tenure.to_us(t.window_from), tenure.to_us(t.window_until), w.jobs,
        tenure.to_us(t.updated_at), tenure.to_us(w.since))
    FROM tenure.turned_budget(p_budget, p_now) AS t
    CROSS JOIN LATERAL (
        SELECT count(*) AS jobs, min(s.created_at) AS since
        FROM tenure.step AS s
        JOIN tenure.job AS j ON j.id = s.job_id AND j.token = s.token AND j.state = 'waiting'
        WHERE s.awaits = tenure.budget_name(t.scope, t.unit, t.per) AND s.state = 'open'
    ) AS w
$$;

-- show_refusal: [scope, unit, per, limit, used, reserved, asked, on_empty, seconds until the window ends]. An amount above the whole limit does
-- not fit in the next window either: only a raise helps, and the seconds are null.
CREATE OR REPLACE FUNCTION tenure.show_refusal(p_budget tenure.budget, p_amounts json, p_now timestamptz) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_array(
        (p_budget).scope, (p_budget).unit, (p_budget).per, (p_budget).cap, (p_budget).used, (p_budget).reserved, a.asked, (p_budget).on_empty,
        CASE WHEN (p_budget).cap > 0 AND (p_budget).cap >= a.asked THEN extract(epoch FROM (p_budget).window_until - p_now)::double precision END)
    FROM (SELECT coalesce((p_amounts ->> (p_budget).unit)::bigint, 0) AS asked) AS a
$$;

-- check_amounts: amounts by unit, whole numbers from 0 on.
CREATE OR REPLACE FUNCTION tenure.check_amounts(p_amounts json) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_amount record;
BEGIN
    FOR v_amount IN SELECT e.key AS unit, e.value AS amount FROM json_each_text(coalesce(p_amounts, '{}')) AS e LOOP
        IF v_amount.unit NOT IN ('usd', 'tokens', 'calls', 'seconds') THEN
            RAISE EXCEPTION 'A budget counts usd, tokens, calls, seconds, not %. Nothing was changed.', quote_literal(v_amount.unit) USING ERRCODE = 'TN007';
        ELSIF coalesce(v_amount.amount, '') !~ '^[0-9]{1,16}$' OR v_amount.amount::numeric > 9007199254740991 THEN
            RAISE EXCEPTION '%: an amount is a whole number from 0 to 9007199254740991 (usd and seconds in millionths), got %. Nothing was changed.',
                v_amount.unit, quote_nullable(v_amount.amount) USING ERRCODE = 'TN007';
        END IF;
    END LOOP;
END
$$;

-- check_scope: a scope that a budget may have.
CREATE OR REPLACE FUNCTION tenure.check_scope(p_scope text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_scope IS NULL OR length(p_scope) > 250 OR p_scope <> btrim(p_scope) OR p_scope !~ '^(all|(queue|kind|tenant):.+|(workflow|job):[0-9a-f-]{36})$' THEN
        RAISE EXCEPTION 'A budget''s scope is one of all, queue:NAME, kind:NAME, tenant:NAME, workflow:ID, job:ID, got %. Nothing was changed.',
            quote_nullable(left(p_scope, 100)) USING ERRCODE = 'TN007';
    END IF;
END
$$;

-- set_budgets: {"budgets": [{"scope", "unit", "limit", "per", "on_empty"}], "actor", "reason"} → the budgets as they stand, in the order given.
-- usd and seconds are in millionths. Creates them, or changes limit and on_empty; what is used stays.
CREATE OR REPLACE FUNCTION tenure.set_budgets(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_one record;
    v_names text[] := '{}';
    v_answer json;
BEGIN
    -- Those that are there are locked by rising id, as everywhere. New ones are known to no other transaction yet.
    PERFORM 1
    FROM tenure.budget AS b
    WHERE (b.scope, b.unit, b.per) IN (
        SELECT e.value ->> 'scope', e.value ->> 'unit', coalesce(e.value ->> 'per', 'total')
        FROM json_array_elements(p_request -> 'budgets') AS e)
    ORDER BY b.id
    FOR NO KEY UPDATE;
    FOR v_one IN
        SELECT b.scope, b.unit, e.value ->> 'limit' AS cap, coalesce(b.per, 'total') AS per, coalesce(b.on_empty, 'park') AS on_empty
        FROM json_array_elements(p_request -> 'budgets') AS e
        CROSS JOIN LATERAL json_to_record(e.value) AS b(scope text, unit text, per text, on_empty text)
        ORDER BY b.scope COLLATE "C", b.unit, b.per
    LOOP
        PERFORM tenure.check_scope(v_one.scope);
        PERFORM tenure.check_amounts(json_build_object(coalesce(v_one.unit, ''), v_one.cap));
        IF v_one.per NOT IN ('hour', 'day', 'month', 'total') OR v_one.on_empty NOT IN ('park', 'fail', 'escalate') THEN
            RAISE EXCEPTION 'A budget is per hour, day, month or total, and on_empty is park, fail or escalate; got % and %. Nothing was changed.',
                quote_literal(v_one.per), quote_literal(v_one.on_empty) USING ERRCODE = 'TN007';
        END IF;
        INSERT INTO tenure.budget AS b (id, scope, unit, per, cap, on_empty, window_from, window_until, created_at, updated_at)
        SELECT gen_random_uuid(), v_one.scope, v_one.unit, v_one.per, v_one.cap::bigint, v_one.on_empty, w.window_from, w.window_until, v_now, v_now
        FROM tenure.budget_window(v_one.per, v_now) AS w
        ON CONFLICT (scope, unit, per) DO UPDATE
        SET cap = excluded.cap,
            on_empty = excluded.on_empty,
            updated_at = excluded.updated_at;
        v_names := v_names || tenure.budget_name(v_one.scope, v_one.unit, v_one.per);
        PERFORM tenure.write_audit(
            v_now, p_request ->> 'actor', 'set_budget', tenure.budget_name(v_one.scope, v_one.unit, v_one.per), p_request ->> 'reason',
            json_build_object('limit', v_one.cap::bigint, 'on_empty', v_one.on_empty));
    END LOOP;
    PERFORM tenure.tell_budgets(v_names);
    SELECT coalesce(json_agg(tenure.show_budget(b, v_now) ORDER BY e.nth), '[]') INTO v_answer
    FROM json_array_elements(p_request -> 'budgets') WITH ORDINALITY AS e(value, nth)
    JOIN tenure.budget AS b ON b.scope = e.value ->> 'scope' AND b.unit = e.value ->> 'unit' AND b.per = coalesce(e.value ->> 'per', 'total');
    RETURN v_answer;
END
$$;

-- raise_budgets: {"scope", "per", "amounts": {unit: amount}, "actor", "reason", "id"} → the budgets as they stand. Adds to their limits; a repeated
-- id adds nothing.
CREATE OR REPLACE FUNCTION tenure.raise_budgets(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_scope text := p_request ->> 'scope';
    v_per text := coalesce(p_request ->> 'per', 'total');
    v_id text := coalesce(p_request ->> 'id', gen_random_uuid()::text);
    v_amount record;
    v_budget tenure.budget;
    v_answer json;
BEGIN
    PERFORM tenure.check_scope(v_scope);
    PERFORM tenure.check_amounts(p_request -> 'amounts');
    PERFORM 1 FROM tenure.budget AS b WHERE b.scope = v_scope AND b.per = v_per ORDER BY b.id FOR NO KEY UPDATE;
    FOR v_amount IN SELECT e.key AS unit, e.value::bigint AS amount FROM json_each_text(p_request -> 'amounts') AS e LOOP
        SELECT * INTO v_budget FROM tenure.budget AS b WHERE b.scope = v_scope AND b.unit = v_amount.unit AND b.per = v_per;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'There is no budget of % in % per %, so there is nothing to raise. Nothing was changed. `tenure budgets ls` lists budgets, `tenure budgets set` makes one.',
                v_scope, v_amount.unit, v_per USING ERRCODE = 'TN009';
        END IF;
        CONTINUE WHEN v_id IN (SELECT r.value FROM json_array_elements_text(v_budget.raises) AS r);
        IF v_budget.cap + v_amount.amount > 9007199254740991 THEN
            RAISE EXCEPTION '%: a budget holds up to 9007199254740991 (usd and seconds in millionths), and with % more it would have %. Nothing was changed.',
                v_amount.unit, v_amount.amount, v_budget.cap + v_amount.amount USING ERRCODE = 'TN007';
        END IF;
        UPDATE tenure.budget AS b
        SET cap = b.cap + v_amount.amount,
            raises = (
                SELECT json_agg(r.value)
                FROM (
                    SELECT v_id AS value
                    UNION ALL
                    (SELECT o.value FROM json_array_elements_text(b.raises) WITH ORDINALITY AS o(value, nth) ORDER BY o.nth LIMIT 15)
                ) AS r
            ),
            updated_at = v_now
        WHERE b.id = v_budget.id;
        PERFORM tenure.write_audit(
            v_now, p_request ->> 'actor', 'raise_budget', tenure.budget_name(v_scope, v_amount.unit, v_per), p_request ->> 'reason',
            json_build_object('by', v_amount.amount, 'limit', v_budget.cap + v_amount.amount));
        PERFORM tenure.tell_budgets(ARRAY[tenure.budget_name(v_scope, v_amount.unit, v_per)]);
    END LOOP;
    SELECT coalesce(json_agg(tenure.show_budget(b, v_now) ORDER BY e.nth), '[]') INTO v_answer
    FROM json_object_keys(p_request -> 'amounts') WITH ORDINALITY AS e(unit, nth)
    JOIN tenure.budget AS b ON b.scope = v_scope AND b.unit = e.unit AND b.per = v_per;
    RETURN v_answer;
END
$$;

-- remove_budgets: {"scope", "unit", "per", "actor", "reason"} → the names of those removed. Without unit and per, all of the scope.
CREATE OR REPLACE FUNCTION tenure.remove_budgets(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_budget tenure.budget;
    v_names text[] := '{}';
BEGIN
    PERFORM 1 FROM tenure.budget AS b WHERE b.scope = p_request ->> 'scope' ORDER BY b.id FOR UPDATE;
    FOR v_budget IN
        SELECT *
        FROM tenure.budget AS b
        WHERE b.scope = p_request ->> 'scope' AND b.unit = coalesce(p_request ->> 'unit', b.unit) AND b.per = coalesce(p_request ->> 'per', b.per)
        ORDER BY b.unit, b.per
    LOOP
        DELETE FROM tenure.budget AS b WHERE b.id = v_budget.id;
        v_names := v_names || tenure.budget_name(v_budget.scope, v_budget.unit, v_budget.per);
        PERFORM tenure.write_audit(
            v_now, p_request ->> 'actor', 'remove_budget', tenure.budget_name(v_budget.scope, v_budget.unit, v_budget.per), p_request ->> 'reason',
            json_build_object('limit', v_budget.cap, 'used', v_budget.used, 'reserved', v_budget.reserved));
    END LOOP;
    PERFORM tenure.tell_budgets(v_names);
    RETURN array_to_json(v_names);
END
$$;

-- list_budgets: {"scopes", "limit", "after": the name of a budget, "is_escalated"} → for each as show_budget has it. With is_escalated only those
-- with on_empty escalate for which jobs wait. To a worker those that concern a job which it holds, or held until it was suspended.
CREATE OR REPLACE FUNCTION tenure.list_budgets(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_scopes text[] := nullif(tenure.text_list(p_request -> 'scopes'), '{}');
    v_after text[] := regexp_match(p_request ->> 'after', '^budget:(.*):([^:]*):([^:]*)$');
    v_mine text[];
    v_answer json;
BEGIN
    IF NOT tenure.reads_all() THEN
        v_mine := ARRAY(
            SELECT DISTINCT s.scope
            FROM tenure.job AS j
            CROSS JOIN LATERAL unnest(tenure.job_scopes(j)) AS s(scope)
            WHERE (j.state IN ('leased', 'running') OR j.state = 'waiting') AND j.lease_login = tenure.login() AND s.scope IS NOT NULL
        );
    END IF;
    SELECT coalesce(json_agg(tenure.show_budget(p.budget, v_now) ORDER BY p.scope COLLATE "C", p.unit, p.per), '[]') INTO v_answer
    FROM (
        SELECT b AS budget, b.scope, b.unit, b.per
        FROM tenure.budget AS b
        WHERE (v_scopes IS NULL OR b.scope = ANY (v_scopes))
            AND (v_mine IS NULL OR b.scope = ANY (v_mine))
            AND (NOT coalesce((p_request ->> 'is_escalated')::boolean, false) OR b.on_empty = 'escalate' AND EXISTS (
                SELECT 1
                FROM tenure.step AS s
                JOIN tenure.job AS j ON j.id = s.job_id AND j.token = s.token AND j.state = 'waiting'
                WHERE s.awaits = tenure.budget_name(b.scope, b.unit, b.per) AND s.state = 'open'))
            AND (v_after IS NULL OR (b.scope COLLATE "C", b.unit COLLATE "C", b.per COLLATE "C") > (v_after[1], v_after[2], v_after[3]))
        ORDER BY b.scope COLLATE "C", b.unit COLLATE "C", b.per COLLATE "C"
        LIMIT tenure.page_limit(p_request)
    ) AS p;
    RETURN v_answer;
END
$$;

-- reserve_budget: {"job_id", "token", "key", "amounts": {unit: amount}, "is_once"} → {"refusal", "is_paid", "is_limited"}, null if the lease is lost.
-- Reserves in every budget that concerns the job, all or none. refusal is null, or as show_refusal has it.
CREATE OR REPLACE FUNCTION tenure.reserve_budget(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_job tenure.job;
    v_key text := p_request ->> 'key';
    v_amounts json := coalesce(p_request -> 'amounts', '{}');
    v_is_once boolean := coalesce((p_request ->> 'is_once')::boolean, false);
    v_mine text[];
    v_ends json;
    v_budgets uuid[];
    v_refuses tenure.budget;
BEGIN
    IF coalesce(btrim(v_key), '') = '' OR length(v_key) > 200 THEN
        RAISE EXCEPTION 'A reservation''s key is a text of 1 to 200 characters. Nothing was reserved.' USING ERRCODE = 'TN007';
    END IF;
    PERFORM tenure.check_amounts(v_amounts);
    v_job := tenure.held_job(p_request, v_now);
    IF v_job.id IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM 1 FROM tenure.spend AS s WHERE s.job_id = v_job.id ORDER BY s.token, s.key, s.budget_id FOR UPDATE;
    SELECT array_agg(DISTINCT s.state) INTO v_mine
    FROM tenure.spend AS s
    WHERE s.job_id = v_job.id AND s.token = v_job.token AND s.key = v_key AND s.state <> 'granted';
    IF v_mine && ARRAY['done', 'broken'] THEN
        RAISE EXCEPTION 'The reservation % of job % is settled. Use another key.', quote_literal(v_key), v_job.id USING ERRCODE = 'TN008';
    ELSIF v_mine IS NOT NULL THEN
        RETURN json_build_object('refusal', NULL, 'is_paid', false, 'is_limited', true);
    ELSIF v_is_once AND EXISTS (SELECT 1 FROM tenure.spend AS s WHERE s.job_id = v_job.id AND s.key = v_key AND s.state = 'done')
        AND cardinality(tenure.owed_budgets(v_job.id, v_key, ARRAY(SELECT s.budget_id FROM tenure.spend AS s WHERE s.job_id = v_job.id))) = 0
    THEN
        RETURN json_build_object('refusal', NULL, 'is_paid', true, 'is_limited', false);
    END IF;
    v_budgets := tenure.lock_budgets(tenure.job_scopes(v_job), v_now);
    IF v_is_once THEN
        v_budgets := tenure.owed_budgets(v_job.id, v_key, v_budgets);
    END IF;
    IF EXISTS (SELECT 1 FROM tenure.spend AS s WHERE s.job_id = v_job.id AND s.key = v_key AND s.state = 'granted') THEN
        IF NOT EXISTS (
            SELECT 1
            FROM (SELECT * FROM tenure.spend AS s WHERE s.job_id = v_job.id AND s.key = v_key AND s.state = 'granted') AS s
            FULL JOIN (SELECT * FROM tenure.budget AS b WHERE b.id = ANY (v_budgets)) AS b ON b.id = s.budget_id
            WHERE s.budget_id IS NULL OR b.id IS NULL OR s.window_from IS DISTINCT FROM b.window_from
                OR s.is_rest <> (v_amounts ->> b.unit IS NULL) OR NOT s.is_rest AND s.reserved <> (v_amounts ->> b.unit)::bigint
        ) THEN
            UPDATE tenure.spend AS s SET state = 'held', token = v_job.token WHERE s.job_id = v_job.id AND s.key = v_key AND s.state = 'granted';
            RETURN json_build_object('refusal', NULL, 'is_paid', false, 'is_limited', true);
        END IF;
    END IF;
    -- What earlier grants have reserved and not settled counts as used; what was granted and is not wanted any more goes back.
    SELECT json_agg(json_build_object(
        'job_id', s.job_id, 'token', s.token, 'key', s.key, 'budget_id', s.budget_id, 'used', CASE s.state WHEN 'held' THEN s.reserved ELSE 0 END,
        'state', CASE s.state WHEN 'held' THEN 'broken' END))
    INTO v_ends
    FROM tenure.spend AS s
    WHERE s.job_id = v_job.id AND (s.state = 'held' AND s.token < v_job.token OR s.state = 'granted' AND s.key = v_key);
    IF v_ends IS NOT NULL THEN
        PERFORM tenure.tell_budgets(tenure.end_spends(v_ends));
    END IF;
    v_refuses := tenure.hold_budgets(v_job, v_job.token, v_key, v_amounts, v_budgets, 'held', v_now);
    RETURN json_build_object(
        'refusal', CASE WHEN v_refuses.id IS NOT NULL THEN tenure.show_refusal(v_refuses, v_amounts, v_now) END, 'is_paid', false,
        'is_limited', cardinality(v_budgets) > 0);
END
$$;

-- settle_budget: {"job_id", "token", "key", "used": {unit: amount}, "is_unused", "is_done", "is_parked"} → {"is_found", "flow"}. Units that are left
-- out count as reserved; such as no amount was named for, as nothing if the work is done. With is_parked the job waits in the middle of the
-- work: amounts that were named count in full at least, the others are reserved anew by a later attempt. Not fenced by the lease; but while another login holds the job under this token, nothing is changed.
CREATE OR REPLACE FUNCTION tenure.settle_budget(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_job_id uuid := tenure.as_uuid(p_request ->> 'job_id');
    v_token bigint := (p_request ->> 'token')::bigint;
    v_used json := coalesce(p_request -> 'used', '{}');
    v_is_unused boolean := coalesce((p_request ->> 'is_unused')::boolean, false);
    v_state text := CASE WHEN v_is_unused THEN NULL WHEN coalesce((p_request ->> 'is_done')::boolean, true) THEN 'done' ELSE 'broken' END;
    v_is_parked boolean := coalesce((p_request ->> 'is_parked')::boolean, false);
    v_ends json;
    v_is_told boolean := false;
BEGIN
    PERFORM tenure.check_amounts(v_used);
    IF EXISTS (
        SELECT 1 FROM tenure.job AS j
        WHERE j.id = v_job_id AND j.token = v_token AND j.state IN ('leased', 'running') AND j.lease_login <> tenure.login()
    ) THEN
        RETURN json_build_object('is_found', false, 'flow', false);
    END IF;
    PERFORM 1
    FROM tenure.spend AS s
    WHERE s.job_id = v_job_id AND s.token = v_token AND s.key = p_request ->> 'key'
    ORDER BY s.budget_id
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN json_build_object('is_found', false, 'flow', false);
    END IF;
    SELECT json_agg(json_build_object(
        'job_id', s.job_id, 'token', s.token, 'key', s.key, 'budget_id', s.budget_id,
        'state', CASE WHEN v_is_parked AND s.is_rest AND v_state = 'done' THEN 'broken' ELSE v_state END,
        'used', CASE
            WHEN v_is_unused THEN 0
            WHEN v_is_parked THEN greatest((v_used ->> b.unit)::bigint, u.amount)
            ELSE coalesce((v_used ->> b.unit)::bigint, u.amount)
        END))
    INTO v_ends
    FROM tenure.spend AS s
    CROSS JOIN LATERAL (
        SELECT CASE WHEN s.is_rest AND v_state = 'done' THEN 0 WHEN s.state = 'broken' THEN s.used ELSE s.reserved END
    ) AS u(amount)
    LEFT JOIN tenure.budget AS b ON b.id = s.budget_id
    WHERE s.job_id = v_job_id AND s.token = v_token AND s.key = p_request ->> 'key' AND s.state IN ('held', 'broken');
    IF v_ends IS NOT NULL THEN
        v_is_told := tenure.tell_budgets(tenure.end_spends(v_ends));
    END IF;
    RETURN json_build_object('is_found', true, 'flow', v_is_told);
END
$$;

-- end_left_spends: count reservations as used whose grant is over, and give back those that were made for jobs that have ended. Answers how many.
CREATE OR REPLACE FUNCTION tenure.end_left_spends(p_limit integer) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    v_ends json;
BEGIN
    WITH left_over AS MATERIALIZED (
        SELECT s.job_id, s.token, s.key, s.budget_id
        FROM tenure.spend AS s
        LEFT JOIN tenure.job AS j ON j.id = s.job_id
        WHERE s.state IN ('granted', 'held')
            AND NOT coalesce(CASE s.state WHEN 'held' THEN j.token = s.token AND j.state IN ('leased', 'running') ELSE j.finished_at IS NULL END, false)
        ORDER BY s.job_id
        LIMIT p_limit
    ), locked AS MATERIALIZED (
        SELECT s.*
        FROM tenure.spend AS s
        JOIN left_over AS l ON l.job_id = s.job_id AND l.token = s.token AND l.key = s.key AND l.budget_id = s.budget_id
        WHERE s.state IN ('granted', 'held')
        ORDER BY s.job_id, s.token, s.key, s.budget_id
        FOR UPDATE OF s SKIP LOCKED
    )
    SELECT json_agg(json_build_object(
        'job_id', s.job_id, 'token', s.token, 'key', s.key, 'budget_id', s.budget_id, 'used', CASE s.state WHEN 'held' THEN s.reserved ELSE 0 END,
        'state', CASE s.state WHEN 'held' THEN 'broken' END))
    INTO v_ends
    FROM locked AS s;
    IF v_ends IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM tenure.tell_budgets(tenure.end_spends(v_ends));
    RETURN json_array_length(v_ends);
END
$$;

-- wake_budget: a budget may have room. Reserve for those who wait for it and fit, in the order in which they began to wait, up to p_limit of
-- them, and an event for the rest. Answers how many jobs were queued.
CREATE OR REPLACE FUNCTION tenure.wake_budget(p_awaits text, p_limit integer, p_now timestamptz) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    v_name text[] := regexp_match(p_awaits, '^budget:(.*):([^:]*):([^:]*)$');
    v_budget tenure.budget;
    v_room bigint;
    v_ids uuid[];
    v_scopes text[];
    v_budgets uuid[];
    v_job tenure.job;
    v_step tenure.step;
    v_refuses tenure.budget;
    v_asked json;
    v_woken uuid[] := '{}';
BEGIN
    -- Wait for whatever is changing the budget, then let go of it again: the jobs are locked before budgets.
    BEGIN
        SELECT * INTO v_budget
        FROM tenure.budget AS b
        WHERE b.scope = v_name[1] AND b.unit = v_name[2] AND b.per = v_name[3]
        FOR NO KEY UPDATE;
        RAISE EXCEPTION 'looked';
    EXCEPTION WHEN raise_exception THEN
        v_budget := tenure.turned_budget(v_budget, p_now);
        v_room := v_budget.cap - v_budget.used - v_budget.reserved;
    END;
    IF v_room <= 0 THEN
        RETURN 0;
    END IF;
    SELECT array_agg(w.job_id) INTO v_ids
    FROM (
        SELECT s.job_id
        FROM tenure.step AS s
        JOIN tenure.job AS j ON j.id BETWEEN s.job_id AND s.job_id AND j.token = s.token AND j.state || '' = 'waiting'
        WHERE s.awaits = p_awaits AND s.state = 'open' AND (v_room IS NULL OR coalesce((s.value -> 'asked' ->> v_name[2])::bigint, 0) <= v_room)
        ORDER BY s.created_at, s.job_id
        LIMIT p_limit
    ) AS w;
    IF v_ids IS NULL THEN
        RETURN 0;
    END IF;
    IF cardinality(v_ids) >= p_limit THEN
        PERFORM tenure.put_flow_event('budget', p_awaits);
    END IF;
    PERFORM 1 FROM tenure.job AS j WHERE j.id = ANY (v_ids) AND j.state || '' = 'waiting' ORDER BY j.id FOR UPDATE;
    v_scopes := ARRAY(SELECT DISTINCT unnest(tenure.job_scopes(j)) FROM tenure.job AS j WHERE j.id = ANY (v_ids));
    v_budgets := tenure.lock_budgets(v_scopes, p_now);
    FOR v_step IN
        SELECT s.*
        FROM tenure.step AS s
        JOIN tenure.job AS j ON j.id BETWEEN s.job_id AND s.job_id AND j.token = s.token AND j.state || '' = 'waiting'
        WHERE s.job_id = ANY (v_ids) AND s.awaits = p_awaits AND s.state || '' = 'open'
        ORDER BY s.created_at, s.job_id
    LOOP
        SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = v_step.job_id;
        v_asked := coalesce(v_step.value -> 'asked', '{}');
        v_refuses := tenure.hold_budgets(
            v_job, v_step.token, v_step.value ->> 'key', v_asked,
            CASE WHEN (v_step.value ->> 'is_once')::boolean THEN tenure.owed_budgets(v_job.id, v_step.value ->> 'key', v_budgets) ELSE v_budgets END,
            'granted', p_now);
        IF v_refuses.id IS NULL OR v_refuses.on_empty = 'fail' THEN  -- the latter is told by its next attempt
            PERFORM tenure.close_step(v_step, 'done', v_step.value, p_now);
            v_woken := v_woken || v_step.job_id;
        ELSIF tenure.budget_name(v_refuses.scope, v_refuses.unit, v_refuses.per) <> p_awaits THEN
            -- Another budget refuses now: it is the one to wait for.
            UPDATE tenure.step AS s
            SET awaits = tenure.budget_name(v_refuses.scope, v_refuses.unit, v_refuses.per)
            WHERE s.job_id = v_step.job_id AND s.key = v_step.key;
            UPDATE tenure.job AS j
            SET waiting_for = tenure.budget_name(v_refuses.scope, v_refuses.unit, v_refuses.per)
            WHERE j.id = v_step.job_id AND j.state = 'waiting';
        END IF;
    END LOOP;
    RETURN cardinality(tenure.queue_waiting(v_woken, p_now));
END
$$;

-- Limiters: keys of services outside that many jobs share. tenure.store.limits says what is promised, tenure.model.limiter what the numbers
-- mean; a test walks both through the same cases.
--
-- Who writes a row of tenure.limiter holds the lock of its key (lock_limiter) first, several in the order of keys. A settle takes them
-- after it has locked its jobs, and holds them while it claims in the same transaction. So a claim never waits for one: it passes over
-- the jobs of a key that another transaction has locked, and says that it is worth to come again at once. Otherwise two exchanges that
-- settle one key each and claim from the other's would wait in a circle.

CREATE OR REPLACE FUNCTION tenure.lock_limiter(p_key text) RETURNS void
LANGUAGE sql
AS $$ SELECT pg_advisory_xact_lock(hashtextextended('tenure.limiter:' || p_key, 0)) $$;

-- check_limiter_key: refuse a key that no limiter can have.
CREATE OR REPLACE FUNCTION tenure.check_limiter_key(p_key text) RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF p_key IS NULL OR btrim(p_key) = '' OR length(p_key) > 100 OR strpos(p_key, ',') > 0 OR p_key ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'The key of a limiter is a printable text of 1 to 100 characters without commas, not %. Nothing was changed.',
            quote_nullable(left(p_key, 100)) USING ERRCODE = 'TN007';
    END IF;
    RETURN p_key;
END
$$;

-- check_block: refuse a block that would never end.
CREATE OR REPLACE FUNCTION tenure.check_block(p_key text, p_seconds double precision) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    PERFORM tenure.check_limiter_key(p_key);
    IF p_seconds IS NULL OR NOT p_seconds BETWEEN 0 AND 86400 THEN
        RAISE EXCEPTION 'Limiter % cannot be blocked for % s: a block ends within 86,400 s (a day), so that no key stays closed for ever. '
            'Block it for that long; if the service refuses again then, that blocks it again. Nothing was changed.',
            quote_literal(p_key), coalesce(p_seconds::text, 'null') USING ERRCODE = 'TN007';
    END IF;
END
$$;

-- request_burst, request_rate, token_burst, token_debt: see tenure.model.limiter.
CREATE OR REPLACE FUNCTION tenure.request_burst(p_per_minute double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT greatest(1, p_per_minute * 2 / 60) $$;

CREATE OR REPLACE FUNCTION tenure.request_rate(p_per_minute double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT (p_per_minute - tenure.request_burst(p_per_minute) + 1) / 60 $$;

CREATE OR REPLACE FUNCTION tenure.token_burst(p_per_minute double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT p_per_minute * 10 / 60 $$;

CREATE OR REPLACE FUNCTION tenure.token_debt(p_per_minute double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT -p_per_minute * 86400 / 60 $$;

CREATE OR REPLACE FUNCTION tenure.next_probes(p_before integer) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT least(1024, greatest(1, 2 * p_before)) $$;

-- risen: a limiter with its levels as they have risen until now.
CREATE OR REPLACE FUNCTION tenure.risen(p_limiter tenure.limiter, p_now timestamptz) RETURNS tenure.limiter
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    v_passed double precision := greatest(0, extract(epoch FROM p_now - p_limiter.level_at));
BEGIN
    IF p_limiter.per_minute IS NOT NULL THEN
        p_limiter.requests := least(
            tenure.request_burst(p_limiter.per_minute), p_limiter.requests + v_passed * tenure.request_rate(p_limiter.per_minute));
    END IF;
    IF p_limiter.tokens_per_minute IS NOT NULL THEN
        p_limiter.tokens := least(
            tenure.token_burst(p_limiter.tokens_per_minute), p_limiter.tokens + v_passed * p_limiter.tokens_per_minute / 60);
    END IF;
    p_limiter.level_at := greatest(p_now, p_limiter.level_at);
    RETURN p_limiter;
END
$$;

-- room_of: how many jobs one limiter lets start now, null for any number; and when the next may, null for now.
CREATE OR REPLACE FUNCTION tenure.room_of(p_limiter tenure.limiter, p_now timestamptz, OUT room integer, OUT opens_at timestamptz)
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    v_risen tenure.limiter;
BEGIN
    IF p_limiter.blocked_until > p_now THEN
        room := 0;
        opens_at := p_limiter.blocked_until;
        RETURN;
    END IF;
    IF p_limiter.strikes > 0 THEN
        room := CASE WHEN p_limiter.probe_at IS NULL OR p_now >= p_limiter.probe_at + interval '1 second'
            THEN tenure.next_probes(p_limiter.probes) ELSE p_limiter.probes_left END;
        opens_at := p_limiter.probe_at + interval '1 second';
    END IF;
    v_risen := tenure.risen(p_limiter, p_now);
    IF p_limiter.per_minute IS NOT NULL THEN
        room := least(room, greatest(0, floor(v_risen.requests + 1e-6)::integer));
        opens_at := greatest(opens_at, p_now
            + ceil(1000000 * greatest(0, 1 - v_risen.requests) / tenure.request_rate(p_limiter.per_minute)) * interval '1 microsecond');
    END IF;
    IF p_limiter.tokens_per_minute IS NOT NULL THEN
        room := least(room, CASE WHEN v_risen.tokens > 1e-6
            THEN least(2147483647, ceil(v_risen.tokens / greatest(1, coalesce(p_limiter.tokens_per_job, 1))))::integer ELSE 0 END);
        opens_at := greatest(opens_at, p_now
            + ceil(1000000 * greatest(0, 1 - v_risen.tokens) * 60 / p_limiter.tokens_per_minute) * interval '1 microsecond');
    END IF;
    IF room IS NULL OR room > 0 THEN
        opens_at := NULL;
    END IF;
END
$$;

-- limiter_room: the same for a job that carries these keys (joined by commas): the least of them, and the last to open.
CREATE OR REPLACE FUNCTION tenure.limiter_room(p_limiter text, p_now timestamptz, OUT room integer, OUT opens_at timestamptz)
LANGUAGE sql STABLE
AS $$
    SELECT min(r.room), max(r.opens_at)
    FROM tenure.limiter AS l
    CROSS JOIN LATERAL tenure.room_of(l, p_now) AS r
    WHERE l.key = ANY (string_to_array(p_limiter, ','))
$$;

-- taken: a limiter after p_jobs started; a negative number gives back what did not start after all.
CREATE OR REPLACE FUNCTION tenure.taken(p_limiter tenure.limiter, p_jobs integer, p_now timestamptz) RETURNS tenure.limiter
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    v_new tenure.limiter := tenure.risen(p_limiter, p_now);
BEGIN
    IF p_limiter.strikes > 0 THEN
        IF p_jobs > 0 AND (p_limiter.probe_at IS NULL OR p_now >= p_limiter.probe_at + interval '1 second') THEN
            v_new.probes := tenure.next_probes(p_limiter.probes);
            v_new.probes_left := v_new.probes;
            v_new.probe_at := p_now;
        END IF;
        v_new.probes_left := least(v_new.probes, v_new.probes_left - p_jobs);
    END IF;
    v_new.requests := v_new.requests - p_jobs;
    v_new.tokens := v_new.tokens - p_jobs * greatest(1, coalesce(p_limiter.tokens_per_job, 1));
    IF p_limiter.per_minute IS NOT NULL THEN
        v_new.requests := least(tenure.request_burst(p_limiter.per_minute), v_new.requests);
    END IF;
    IF p_limiter.tokens_per_minute IS NOT NULL THEN
        v_new.tokens := greatest(
            tenure.token_debt(p_limiter.tokens_per_minute), least(tenure.token_burst(p_limiter.tokens_per_minute), v_new.tokens));
    END IF;
    RETURN v_new;
END
$$;

-- put_limiter: write a row whose key is locked.
CREATE OR REPLACE FUNCTION tenure.put_limiter(p_limiter tenure.limiter, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    p_limiter.updated_at := p_now;
    INSERT INTO tenure.limiter SELECT (p_limiter).*
    ON CONFLICT (key) DO UPDATE
    SET per_minute = excluded.per_minute,
        tokens_per_minute = excluded.tokens_per_minute,
        tokens_per_job = excluded.tokens_per_job,
        requests = excluded.requests,
        tokens = excluded.tokens,
        level_at = excluded.level_at,
        blocked_until = excluded.blocked_until,
        strikes = excluded.strikes,
        probes = excluded.probes,
        probes_left = excluded.probes_left,
        probe_at = excluded.probe_at,
        reason = excluded.reason,
        updated_at = excluded.updated_at;
END
$$;

-- limiter_of: the row of a key, locked; a new one that limits nothing where there is none.
CREATE OR REPLACE FUNCTION tenure.limiter_of(p_key text, p_now timestamptz) RETURNS tenure.limiter
LANGUAGE plpgsql
AS $$
DECLARE
    v_limiter tenure.limiter;
BEGIN
    PERFORM tenure.lock_limiter(p_key);
    SELECT * INTO v_limiter FROM tenure.limiter AS l WHERE l.key = p_key;
    IF NOT FOUND THEN
        v_limiter.key := p_key;
        v_limiter.requests := 0;
        v_limiter.tokens := 0;
        v_limiter.level_at := p_now;
        v_limiter.strikes := 0;
        v_limiter.probes := 0;
        v_limiter.probes_left := 0;
    END IF;
    RETURN v_limiter;
END
$$;

-- take_from_limiters: p_jobs with these keys were granted, or given back where it is negative. Only keys that count anything are written.
-- A claim has locked them; one that began to count only since then, by a refusal that came in between, is left alone if it is locked.
CREATE OR REPLACE FUNCTION tenure.take_from_limiters(p_limiter text, p_jobs integer, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_key text;
    v_limiter tenure.limiter;
BEGIN
    FOR v_key IN
        SELECT l.key FROM tenure.limiter AS l
        WHERE l.key = ANY (string_to_array(p_limiter, ',')) AND (l.strikes > 0 OR l.per_minute IS NOT NULL OR l.tokens_per_minute IS NOT NULL)
        ORDER BY l.key COLLATE "C"
    LOOP
        CONTINUE WHEN p_jobs > 0 AND NOT pg_try_advisory_xact_lock(hashtextextended('tenure.limiter:' || v_key, 0));
        v_limiter := tenure.limiter_of(v_key, p_now);
        PERFORM tenure.put_limiter(tenure.taken(v_limiter, p_jobs, p_now), p_now);
    END LOOP;
END
$$;

-- open_limiters: the lists of claimable jobs with a limiter that has room now, one for each queue and limiter, in the order of their first
-- jobs; and when the first of the others opens. A key that counts its starts is locked until the commit; one that is blocked, or locked by
-- another transaction, is passed over. Each limiter of a queue is found by one look behind the one before, so the jobs themselves are not
-- walked. p_most: so many lists at most, null for all.
CREATE OR REPLACE FUNCTION tenure.open_limiters(
    p_queues tenure.queue[], p_is_alone boolean, p_most integer, p_now timestamptz,
    OUT queues tenure.queue[], OUT limiters text[], OUT opens_at timestamptz
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_found text[];
    v_nths integer[];
    v_known text[];
    v_busy text[];
    v_keys text[];
    v_open integer[] := '{}';
    v_room record;
BEGIN
    queues := '{}';
    limiters := '{}';
    WITH RECURSIVE found AS (
        SELECT n.nth, h.limiter, h.rank, h.run_at, h.id
        FROM generate_series(1, cardinality(p_queues)) AS n(nth)
        CROSS JOIN LATERAL (
            SELECT coalesce(j.limiter, '') AS limiter, j.rank, j.run_at, j.id FROM tenure.job AS j
            WHERE j.queue = (p_queues[n.nth]).name AND (j.suspicion >= 2) = p_is_alone AND coalesce(j.limiter, '') > ''
                AND j.state = 'queued' AND j.is_due
            ORDER BY coalesce(j.limiter, ''), j.rank, j.run_at, j.id LIMIT 1
        ) AS h
        UNION ALL
        SELECT f.nth, h.limiter, h.rank, h.run_at, h.id
        FROM found AS f
        CROSS JOIN LATERAL (
            SELECT coalesce(j.limiter, '') AS limiter, j.rank, j.run_at, j.id FROM tenure.job AS j
            WHERE j.queue = (p_queues[f.nth]).name AND (j.suspicion >= 2) = p_is_alone AND coalesce(j.limiter, '') > f.limiter
                AND j.state = 'queued' AND j.is_due
            ORDER BY coalesce(j.limiter, ''), j.rank, j.run_at, j.id LIMIT 1
        ) AS h
    )
    SELECT array_agg(f.nth ORDER BY f.rank, f.run_at, f.id), array_agg(f.limiter ORDER BY f.rank, f.run_at, f.id)
    INTO v_nths, v_found
    FROM found AS f;
    IF v_found IS NULL THEN
        RETURN;
    END IF;
    -- Of the keys those that hold jobs back, or may. A list without any of them is open.
    SELECT array_agg(k.key),
        array_agg(k.key) FILTER (
            WHERE CASE WHEN k.blocked_until > p_now THEN false
                ELSE NOT pg_try_advisory_xact_lock(hashtextextended('tenure.limiter:' || k.key, 0)) END)
    INTO v_known, v_busy
    FROM (
        SELECT l.key, l.blocked_until FROM tenure.limiter AS l
        WHERE l.key IN (SELECT unnest(string_to_array(f.limiter, ',')) FROM unnest(v_found) AS f(limiter))
            AND (l.strikes > 0 OR l.blocked_until > p_now OR l.per_minute IS NOT NULL OR l.tokens_per_minute IS NOT NULL)
        ORDER BY l.key COLLATE "C"
    ) AS k;
    FOR i IN 1 .. cardinality(v_found) LOOP
        IF v_known IS NOT NULL THEN
            v_keys := string_to_array(v_found[i], ',');
            IF v_busy && v_keys THEN
                opens_at := least(opens_at, p_now + interval '20 milliseconds');
                CONTINUE;
            ELSIF v_known && v_keys THEN
                v_room := tenure.limiter_room(v_found[i], p_now);
                IF v_room.room <= 0 THEN
                    opens_at := least(opens_at, v_room.opens_at);
                    CONTINUE;
                END IF;
            END IF;
        END IF;
        IF cardinality(v_open) = p_most THEN
            opens_at := p_now + interval '20 milliseconds';  -- should these not be enough, there are more
            EXIT;
        END IF;
        v_open := v_open || i;
    END LOOP;
    queues := ARRAY(SELECT p_queues[v_nths[o.nth]] FROM unnest(v_open) AS o(nth));
    limiters := ARRAY(SELECT v_found[o.nth] FROM unnest(v_open) AS o(nth));
END
$$;

-- block_key: a service refused, so the key is closed for so long at least. Its row is locked.
CREATE OR REPLACE FUNCTION tenure.block_key(p_key text, p_seconds double precision, p_reason text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_limiter tenure.limiter := tenure.limiter_of(p_key, p_now);
BEGIN
    v_limiter.blocked_until := greatest(v_limiter.blocked_until, p_now + coalesce(p_seconds, 0) * interval '1 second');
    v_limiter.strikes := v_limiter.strikes + 1;
    v_limiter.probes := 0;
    v_limiter.probes_left := 0;
    v_limiter.probe_at := NULL;
    v_limiter.reason := coalesce(left(p_reason, 500), v_limiter.reason);
    PERFORM tenure.put_limiter(v_limiter, p_now);
END
$$;

-- tell_limiters: what a settle means for limiters. p_relieved: [[limiter, when it was granted], …] of jobs that have succeeded.
-- p_told: [key, seconds, error] of a refusal, or [limiter] of a job that was given back and had not started. Keys go in their order.
CREATE OR REPLACE FUNCTION tenure.tell_limiters(p_relieved json, p_told json[], p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_row record;
    v_limiter tenure.limiter;
    v_is_relieved boolean := false;
BEGIN
    PERFORM tenure.check_block(t.value ->> 0, (t.value ->> 1)::double precision) FROM unnest(p_told) AS t(value) WHERE json_array_length(t.value) = 3;
    FOR v_row IN
        SELECT a.*
        FROM (
            SELECT k.key, t.value AS told, NULL::timestamptz AS granted_at, t.nth
            FROM unnest(p_told) WITH ORDINALITY AS t(value, nth)
            CROSS JOIN LATERAL unnest(string_to_array(t.value ->> 0, ',')) AS k(key)
            UNION ALL
            SELECT k.key, NULL, max((r.value ->> 1)::timestamptz), NULL
            FROM json_array_elements(coalesce(p_relieved, '[]')) AS r
            CROSS JOIN LATERAL unnest(string_to_array(r.value ->> 0, ',')) AS k(key)
            JOIN tenure.limiter AS l ON l.key = k.key AND l.strikes > 0
            GROUP BY k.key
        ) AS a
        ORDER BY a.key COLLATE "C", a.nth
    LOOP
        IF v_row.granted_at IS NOT NULL THEN
            v_limiter := tenure.limiter_of(v_row.key, p_now);
            IF coalesce(v_limiter.blocked_until <= v_row.granted_at, true) THEN
                v_limiter.strikes := 0;
                v_limiter.probes := 0;
                v_limiter.probes_left := 0;
                v_limiter.probe_at := NULL;
                PERFORM tenure.put_limiter(v_limiter, p_now);
                v_is_relieved := true;
            END IF;
        ELSIF json_array_length(v_row.told) = 3 THEN
            PERFORM tenure.block_key(v_row.key, (v_row.told ->> 1)::double precision, v_row.told ->> 2, p_now);
        ELSE
            PERFORM tenure.take_from_limiters(v_row.key, -1, p_now);
        END IF;
    END LOOP;
    IF v_is_relieved THEN
        PERFORM tenure.wake_limited();
    END IF;
END
$$;

-- wake_limited: workers of queues with jobs that a limiter may have held back look again.
CREATE OR REPLACE FUNCTION tenure.wake_limited() RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM tenure.notify(q.names)
    FROM (
        SELECT array_agg(q.name) AS names FROM tenure.queue AS q
        WHERE EXISTS (
            SELECT 1 FROM tenure.job AS j
            WHERE j.queue = q.name AND (j.suspicion >= 2, coalesce(j.limiter, '')) > (false, '')
                AND (j.suspicion >= 2, coalesce(j.limiter, '')) < (true, '') AND j.state = 'queued' AND j.is_due)
    ) AS q
    WHERE q.names IS NOT NULL;
END
$$;

-- show_limiter: one row of list_limiters. The reason may be the error of a job, so only those who read all jobs are told it.
CREATE OR REPLACE FUNCTION tenure.show_limiter(p_limiter tenure.limiter, p_now timestamptz) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT json_build_array((p_limiter).key, (p_limiter).per_minute, (p_limiter).tokens_per_minute, (p_limiter).tokens_per_job,
        tenure.to_us((p_limiter).blocked_until), (p_limiter).strikes, CASE WHEN tenure.reads_all() THEN (p_limiter).reason END, r.room, tenure.to_us(r.opens_at),
        tenure.to_us((p_limiter).updated_at))
    FROM tenure.room_of(p_limiter, p_now) AS r
$$;

-- list_limiters: {"keys"} → [[key, per_minute, tokens_per_minute, tokens_per_job, blocked_until, strikes, reason, room, opens_at, updated_at]].
CREATE OR REPLACE FUNCTION tenure.list_limiters(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(tenure.show_limiter(l, tenure.now()) ORDER BY l.key COLLATE "C"), '[]')
    FROM tenure.limiter AS l
    WHERE tenure.text_list(p_request -> 'keys') IS NULL OR l.key = ANY (tenure.text_list(p_request -> 'keys'))
$$;

-- list_limited: {"limit", "cap", "sample"} → [[queue, limiter, jobs, oldest_at, [id, …]]]. Each group is found by one look behind the one
-- before, so the jobs themselves are not walked; of each `cap` are counted.
CREATE OR REPLACE FUNCTION tenure.list_limited(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit integer := (p_request ->> 'limit')::integer;
    v_cap integer := (p_request ->> 'cap')::integer;
    v_sample integer := (p_request ->> 'sample')::integer;
    v_queue text;
    v_limiter text;
    v_found json[] := '{}';
BEGIN
    FOR v_queue IN SELECT q.name FROM tenure.queue AS q ORDER BY q.name COLLATE "C" LOOP
        v_limiter := '';
        WHILE cardinality(v_found) < v_limit LOOP
            SELECT coalesce(j.limiter, '') INTO v_limiter FROM tenure.job AS j
            WHERE j.queue = v_queue AND (j.suspicion >= 2) = false AND coalesce(j.limiter, '') > v_limiter
                AND j.state = 'queued' AND j.is_due
            ORDER BY coalesce(j.limiter, '') LIMIT 1;
            EXIT WHEN NOT FOUND;
            v_found := v_found || (
                SELECT json_build_array(v_queue, v_limiter, count(*), tenure.to_us(min(s.run_at)), (
                    SELECT json_agg(f.id ORDER BY f.rank, f.run_at, f.id) FROM (
                        SELECT j.id, j.rank, j.run_at FROM tenure.job AS j
                        WHERE j.queue = v_queue AND (j.suspicion >= 2) = false AND coalesce(j.limiter, '') = v_limiter
                            AND j.state = 'queued' AND j.is_due
                        ORDER BY j.rank, j.run_at, j.id LIMIT v_sample
                    ) AS f))
                FROM (
                    SELECT j.run_at FROM tenure.job AS j
                    WHERE j.queue = v_queue AND (j.suspicion >= 2) = false AND coalesce(j.limiter, '') = v_limiter
                        AND j.state = 'queued' AND j.is_due
                    LIMIT v_cap
                ) AS s
            );
        END LOOP;
    END LOOP;
    RETURN array_to_json(v_found);
END
$$;

-- set_limiter: {"key", "per_minute", "tokens_per_minute", "tokens_per_job", "actor", "reason"} → the limiter.
CREATE OR REPLACE FUNCTION tenure.set_limiter(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_key text := tenure.check_limiter_key(p_request ->> 'key');
    v_per_minute double precision := p_request ->> 'per_minute';
    v_tokens double precision := p_request ->> 'tokens_per_minute';
    v_each double precision := p_request ->> 'tokens_per_job';
    v_limiter tenure.limiter;
BEGIN
    IF NOT coalesce(v_per_minute BETWEEN 1.0 / 1440 AND 1e9, true) OR NOT coalesce(v_tokens BETWEEN 1 AND 1e9, true)
        OR NOT coalesce(v_each BETWEEN 1 AND 1e9, true)
    THEN
        RAISE EXCEPTION 'Limiter %: per_minute must be from 0.000694 and tokens from 1, up to 1e9; otherwise it would never let a job through. '
            'To hold all jobs of a queue back, pause the queue. Nothing was changed.', quote_literal(v_key) USING ERRCODE = 'TN007';
    END IF;
    v_limiter := tenure.risen(tenure.limiter_of(v_key, v_now), v_now);
    IF v_per_minute IS NOT NULL THEN
        v_limiter.requests := CASE WHEN v_limiter.per_minute IS NULL THEN tenure.request_burst(v_per_minute)
            ELSE least(v_limiter.requests, tenure.request_burst(v_per_minute)) END;
    END IF;
    IF v_tokens IS NOT NULL THEN
        v_limiter.tokens := CASE WHEN v_limiter.tokens_per_minute IS NULL THEN tenure.token_burst(v_tokens)
            ELSE least(v_limiter.tokens, tenure.token_burst(v_tokens)) END;
        v_each := coalesce(v_each, v_limiter.tokens_per_job, greatest(1, v_tokens / 60));
    END IF;
    v_limiter.per_minute := v_per_minute;
    v_limiter.tokens_per_minute := v_tokens;
    v_limiter.tokens_per_job := v_each;
    PERFORM tenure.put_limiter(v_limiter, v_now);
    PERFORM tenure.audit_limiter(p_request, 'set_limiter',
        json_build_object('per_minute', v_per_minute, 'tokens_per_minute', v_tokens), v_now);
    PERFORM tenure.wake_limited();
    RETURN (SELECT tenure.show_limiter(l, v_now) FROM tenure.limiter AS l WHERE l.key = v_key);
END
$$;

-- block_limiter: {"key", "seconds", "actor", "reason"} → the limiter.
CREATE OR REPLACE FUNCTION tenure.block_limiter(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_seconds double precision := p_request ->> 'seconds';
BEGIN
    PERFORM tenure.check_block(p_request ->> 'key', v_seconds);
    PERFORM tenure.block_key(p_request ->> 'key', v_seconds, p_request ->> 'reason', v_now);
    PERFORM tenure.audit_limiter(p_request, 'block_limiter', json_build_object('seconds', v_seconds), v_now);
    RETURN (SELECT tenure.show_limiter(l, v_now) FROM tenure.limiter AS l WHERE l.key = p_request ->> 'key');
END
$$;

-- clear_limiter: {"key", "actor", "reason"} → the limiter, open; null if there is none.
CREATE OR REPLACE FUNCTION tenure.clear_limiter(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_key text := tenure.check_limiter_key(p_request ->> 'key');
BEGIN
    PERFORM tenure.lock_limiter(v_key);
    UPDATE tenure.limiter AS l
    SET blocked_until = NULL,
        strikes = 0,
        probes = 0,
        probes_left = 0,
        probe_at = NULL,
        updated_at = v_now
    WHERE l.key = v_key;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM tenure.audit_limiter(p_request, 'clear_limiter', '{}', v_now);
    PERFORM tenure.wake_limited();
    RETURN (SELECT tenure.show_limiter(l, v_now) FROM tenure.limiter AS l WHERE l.key = v_key);
END
$$;

-- remove_limiter: {"key", "actor", "reason"} → whether there was one.
CREATE OR REPLACE FUNCTION tenure.remove_limiter(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_key text := tenure.check_limiter_key(p_request ->> 'key');
BEGIN
    PERFORM tenure.lock_limiter(v_key);
    DELETE FROM tenure.limiter AS l WHERE l.key = v_key;
    IF NOT FOUND THEN
        RETURN to_json(false);
    END IF;
    PERFORM tenure.audit_limiter(p_request, 'remove_limiter', '{}', tenure.now());
    PERFORM tenure.wake_limited();
    RETURN to_json(true);
END
$$;

-- use_tokens: {"key", "tokens"}: one job used so many. Answers whether the key counts them.
CREATE OR REPLACE FUNCTION tenure.use_tokens(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_key text := tenure.check_limiter_key(p_request ->> 'key');
    v_tokens double precision := p_request ->> 'tokens';
    v_before double precision;
    v_limiter tenure.limiter;
BEGIN
    IF v_tokens IS NULL OR NOT v_tokens BETWEEN 0 AND 1e9 THEN
        RAISE EXCEPTION 'Limiter %: % is no number of tokens. Nothing was counted.', quote_literal(v_key), coalesce(v_tokens::text, 'null')
            USING ERRCODE = 'TN007';
    END IF;
    IF NOT EXISTS (SELECT 1 FROM tenure.limiter AS l WHERE l.key = v_key AND l.tokens_per_minute IS NOT NULL) THEN
        RETURN to_json(false);
    END IF;
    v_limiter := tenure.risen(tenure.limiter_of(v_key, v_now), v_now);
    v_before := greatest(1, coalesce(v_limiter.tokens_per_job, 1));
    v_limiter.tokens := greatest(tenure.token_debt(v_limiter.tokens_per_minute), v_limiter.tokens - (v_tokens - v_before));
    v_limiter.tokens_per_job := v_before + (v_tokens - v_before) / 8;
    PERFORM tenure.put_limiter(v_limiter, v_now);
    RETURN to_json(true);
END
$$;

-- prune_limiters: forget keys that have no rates and were not blocked for a day. One that is being written is left for the next time.
CREATE OR REPLACE FUNCTION tenure.prune_limiters(p_now timestamptz) RETURNS void
LANGUAGE sql
AS $$
    DELETE FROM tenure.limiter AS l
    WHERE l.key IN (
        SELECT o.key FROM tenure.limiter AS o
        WHERE o.per_minute IS NULL AND o.tokens_per_minute IS NULL AND o.updated_at <= p_now - interval '1 day'
            AND coalesce(o.blocked_until, o.updated_at) <= p_now - interval '1 day'
        FOR UPDATE SKIP LOCKED)
$$;

CREATE OR REPLACE FUNCTION tenure.audit_limiter(p_request json, p_act text, p_detail json, p_now timestamptz) RETURNS void
LANGUAGE sql
AS $$
    SELECT tenure.write_audit(p_now, p_request ->> 'actor', p_act, 'limiter:' || (p_request ->> 'key'), p_request ->> 'reason', p_detail)
$$;

-- Access: API tokens, browser sessions and one-time links, remembered requests, and the chain over the audit.

CREATE OR REPLACE FUNCTION tenure.show_token(p_row tenure.api_token) RETURNS json
LANGUAGE sql STABLE
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT json_build_object(
        'id', p_row.id, 'name', p_row.name, 'scopes', p_row.scopes, 'digest', p_row.digest,
        'created_at', tenure.to_us(p_row.created_at), 'created_by', p_row.created_by,
        'expires_at', tenure.to_us(p_row.expires_at), 'last_used_at', tenure.to_us(p_row.last_used_at),
        'revoked_at', tenure.to_us(p_row.revoked_at), 'revoked_by', p_row.revoked_by,
        'is_valid', p_row.revoked_at IS NULL AND p_row.expires_at > tenure.now()
    )
$$;

-- check_access: what a new token or link must have.
CREATE OR REPLACE FUNCTION tenure.check_access(p_request json) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    IF coalesce((p_request ->> 'seconds')::float8, 0) <= 0 OR (p_request ->> 'seconds')::float8 > 366 * 86400.0 THEN
        RAISE EXCEPTION 'seconds: expected more than 0 and at most a year, got %. Nothing was created.', p_request ->> 'seconds'
            USING ERRCODE = 'TN007';
    END IF;
    IF coalesce(btrim(p_request ->> 'name'), '') = '' OR length(p_request ->> 'name') > 200 THEN
        RAISE EXCEPTION 'name: it must say what the token is for, in 1 to 200 characters. Nothing was created.' USING ERRCODE = 'TN007';
    END IF;
    IF coalesce(json_array_length(p_request -> 'scopes'), 0) = 0 THEN
        RAISE EXCEPTION 'scopes: there is none, so it could do nothing. Nothing was created.' USING ERRCODE = 'TN007';
    END IF;
END
$$;

-- create_token: {"id", "digest", "name", "scopes", "seconds", "actor"} → the token as stored. A repeat finds its own row.
CREATE OR REPLACE FUNCTION tenure.create_token(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_row tenure.api_token;
BEGIN
    PERFORM tenure.check_access(p_request);
    INSERT INTO tenure.api_token (id, name, scopes, digest, created_at, created_by, expires_at)
    VALUES (p_request ->> 'id', p_request ->> 'name', p_request -> 'scopes', p_request ->> 'digest', v_now, p_request ->> 'actor',
        v_now + make_interval(secs => (p_request ->> 'seconds')::float8))
    ON CONFLICT (id) DO NOTHING;
    IF FOUND THEN
        PERFORM tenure.write_audit(v_now, p_request ->> 'actor', 'create_token', p_request ->> 'id', NULL,
            json_build_object('name', p_request ->> 'name', 'scopes', p_request -> 'scopes'));
    END IF;
    SELECT * INTO STRICT v_row FROM tenure.api_token AS t WHERE t.id = p_request ->> 'id';
    IF v_row.digest <> p_request ->> 'digest' THEN
        RAISE EXCEPTION 'A token ''%'' exists already, with another secret. Nothing was changed.', v_row.id USING ERRCODE = 'TN004';
    END IF;
    RETURN tenure.show_token(v_row);
END
$$;

-- find_token: {"id"} → the token, or null.
CREATE OR REPLACE FUNCTION tenure.find_token(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT tenure.show_token(t) FROM tenure.api_token AS t WHERE t.id = p_request ->> 'id'
$$;

-- list_tokens: {"limit"} → newest first.
CREATE OR REPLACE FUNCTION tenure.list_tokens(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(tenure.show_token(t) ORDER BY t.created_at DESC, t.id COLLATE "C"), '[]')
    FROM (
        SELECT * FROM tenure.api_token AS a ORDER BY a.created_at DESC, a.id COLLATE "C" LIMIT (p_request ->> 'limit')::integer
    ) AS found
    JOIN tenure.api_token AS t ON t.id = found.id
$$;

-- revoke_tokens: {"ids", "actor"} → the ids that changed. Sessions that were opened with them end too.
CREATE OR REPLACE FUNCTION tenure.revoke_tokens(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_changed text[] := '{}';
    v_id text;
    v_name text;
BEGIN
    FOR v_id IN SELECT DISTINCT e.id COLLATE "C" FROM json_array_elements_text(p_request -> 'ids') AS e(id) ORDER BY 1 LOOP
        UPDATE tenure.api_token AS t
        SET revoked_at = v_now,
            revoked_by = p_request ->> 'actor'
        WHERE t.id = v_id AND t.revoked_at IS NULL
        RETURNING t.name INTO v_name;
        IF FOUND THEN
            UPDATE tenure.web_session AS s SET ended_at = v_now WHERE s.token_id = v_id AND s.ended_at IS NULL;
            PERFORM tenure.write_audit(v_now, p_request ->> 'actor', 'revoke_token', v_id, NULL, json_build_object('name', v_name));
            v_changed := v_changed || v_id;
        END IF;
    END LOOP;
    RETURN to_json(v_changed);
END
$$;

-- touch_tokens: {"ids"} → how many rows were written. Once a minute is enough.
CREATE OR REPLACE FUNCTION tenure.touch_tokens(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_written integer;
BEGIN
    -- Another process that is just writing the same row does the same: this one need not wait for it.
    WITH due AS (
        SELECT t.id
        FROM tenure.api_token AS t
        WHERE t.id IN (SELECT e.id FROM json_array_elements_text(p_request -> 'ids') AS e(id))
            AND (t.last_used_at IS NULL OR t.last_used_at < tenure.now() - interval '1 minute')
        ORDER BY t.id
        FOR UPDATE SKIP LOCKED
    )
    UPDATE tenure.api_token AS t SET last_used_at = tenure.now() FROM due WHERE t.id = due.id;
    GET DIAGNOSTICS v_written = ROW_COUNT;
    RETURN to_json(v_written);
END
$$;

CREATE OR REPLACE FUNCTION tenure.show_session(p_row tenure.web_session, p_idle_seconds float8) RETURNS json
LANGUAGE sql STABLE
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT json_build_object(
        'digest', p_row.digest, 'kind', p_row.kind, 'name', p_row.name, 'scopes', p_row.scopes, 'token_id', p_row.token_id,
        'address', p_row.address, 'created_at', tenure.to_us(p_row.created_at), 'seen_at', tenure.to_us(p_row.seen_at),
        'expires_at', tenure.to_us(p_row.expires_at), 'ended_at', tenure.to_us(p_row.ended_at),
        'is_valid', p_row.ended_at IS NULL AND p_row.expires_at > tenure.now()
            AND (p_row.kind = 'link' OR p_row.seen_at > tenure.now() - make_interval(secs => p_idle_seconds))
            AND (p_row.token_id IS NULL OR EXISTS (
                SELECT 1 FROM tenure.api_token AS t
                WHERE t.id = p_row.token_id AND t.revoked_at IS NULL AND t.expires_at > tenure.now()
            ))
    )
$$;

-- create_link: {"digest", "name", "scopes", "seconds", "actor"} → the link as stored.
CREATE OR REPLACE FUNCTION tenure.create_link(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_row tenure.web_session;
BEGIN
    PERFORM tenure.check_access(p_request);
    INSERT INTO tenure.web_session (digest, kind, name, scopes, created_at, seen_at, expires_at)
    VALUES (p_request ->> 'digest', 'link', p_request ->> 'name', p_request -> 'scopes', v_now, v_now,
        v_now + make_interval(secs => (p_request ->> 'seconds')::float8))
    ON CONFLICT (digest) DO NOTHING;
    PERFORM tenure.write_audit(v_now, p_request ->> 'actor', 'create_link', p_request ->> 'name', NULL,
        json_build_object('scopes', p_request -> 'scopes'));
    SELECT * INTO STRICT v_row FROM tenure.web_session AS s WHERE s.digest = p_request ->> 'digest';
    RETURN tenure.show_session(v_row, 1800);
END
$$;

-- open_session: {"digest", "seconds", "link" or "token_id", "address"} → the session, or null if neither is valid.
-- The row of the link decides, under its lock: one link opens one session.
CREATE OR REPLACE FUNCTION tenure.open_session(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_name text;
    v_scopes json;
    v_token text := CASE WHEN p_request ->> 'link' IS NULL THEN p_request ->> 'token_id' END;
    v_row tenure.web_session;
BEGIN
    IF p_request ->> 'link' IS NOT NULL THEN
        UPDATE tenure.web_session AS s
        SET ended_at = v_now,
            seen_at = v_now
        WHERE s.digest = p_request ->> 'link' AND s.kind = 'link' AND s.ended_at IS NULL AND s.expires_at > v_now
        RETURNING s.name, s.scopes INTO v_name, v_scopes;
    ELSE
        SELECT t.name, t.scopes INTO v_name, v_scopes
        FROM tenure.api_token AS t
        WHERE t.id = v_token AND t.revoked_at IS NULL AND t.expires_at > v_now;
    END IF;
    IF v_name IS NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO tenure.web_session (digest, kind, name, scopes, token_id, address, created_at, seen_at, expires_at)
    VALUES (p_request ->> 'digest', 'session', v_name, v_scopes, v_token, p_request ->> 'address', v_now, v_now,
        v_now + make_interval(secs => (p_request ->> 'seconds')::float8));
    DELETE FROM tenure.web_session AS s
    WHERE s.digest IN (
        SELECT o.digest FROM tenure.web_session AS o WHERE o.expires_at < v_now - interval '7 days' LIMIT 100 FOR UPDATE SKIP LOCKED
    );
    PERFORM tenure.write_audit(v_now, v_name, 'sign_in', v_name, NULL,
        json_build_object('token', v_token, 'address', p_request ->> 'address'));
    SELECT * INTO STRICT v_row FROM tenure.web_session AS s WHERE s.digest = p_request ->> 'digest';
    RETURN tenure.show_session(v_row, 1800);
END
$$;

-- find_session: {"digest", "idle_seconds"} → the session or link, or null.
CREATE OR REPLACE FUNCTION tenure.find_session(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT tenure.show_session(s, (p_request ->> 'idle_seconds')::float8)
    FROM tenure.web_session AS s
    WHERE s.digest = p_request ->> 'digest'
$$;

-- touch_session: {"digest"} → whether the row was written. Once a minute is enough.
CREATE OR REPLACE FUNCTION tenure.touch_session(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    UPDATE tenure.web_session AS s
    SET seen_at = tenure.now()
    WHERE s.digest = p_request ->> 'digest' AND s.ended_at IS NULL AND s.seen_at < tenure.now() - interval '1 minute';
    RETURN to_json(FOUND);
END
$$;

-- list_sessions: {"limit", "idle_seconds"} → those that have not ended, newest first.
CREATE OR REPLACE FUNCTION tenure.list_sessions(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(
        tenure.show_session(s, (p_request ->> 'idle_seconds')::float8) ORDER BY s.created_at DESC, s.digest COLLATE "C"
    ), '[]')
    FROM (
        SELECT w.digest FROM tenure.web_session AS w
        WHERE w.ended_at IS NULL
        ORDER BY w.created_at DESC, w.digest COLLATE "C"
        LIMIT (p_request ->> 'limit')::integer
    ) AS found
    JOIN tenure.web_session AS s ON s.digest = found.digest
$$;

-- end_sessions: {"digests", "actor"} → those that changed.
CREATE OR REPLACE FUNCTION tenure.end_sessions(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_changed text[] := '{}';
    v_digest text;
    v_name text;
BEGIN
    FOR v_digest IN SELECT DISTINCT e.digest COLLATE "C" FROM json_array_elements_text(p_request -> 'digests') AS e(digest) ORDER BY 1 LOOP
        UPDATE tenure.web_session AS s SET ended_at = v_now
        WHERE s.digest = v_digest AND s.ended_at IS NULL
        RETURNING s.name INTO v_name;
        IF FOUND THEN
            PERFORM tenure.write_audit(v_now, p_request ->> 'actor', 'sign_out', v_name, NULL, '{}');
            v_changed := v_changed || v_digest;
        END IF;
    END LOOP;
    RETURN to_json(v_changed);
END
$$;

-- keep_secret: {"name", "candidate"} → the value that stands. The first stays.
CREATE OR REPLACE FUNCTION tenure.keep_secret(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    IF p_request ->> 'name' IS NULL OR p_request ->> 'candidate' IS NULL THEN
        RAISE EXCEPTION 'keep_secret needs "name" and "candidate". Nothing was changed.' USING ERRCODE = 'TN007';
    END IF;
    INSERT INTO tenure.web_secret (name, value) VALUES (p_request ->> 'name', p_request ->> 'candidate') ON CONFLICT (name) DO NOTHING;
    RETURN (SELECT to_json(w.value) FROM tenure.web_secret AS w WHERE w.name = p_request ->> 'name');
END
$$;

-- remember_request: {"token_id", "key", "body", "ids", "answers"} → [is new, body, ids, answers] as they stand. A row stays for a day, and so
-- do the first answers; they may come later, by a repeat.
CREATE OR REPLACE FUNCTION tenure.remember_request(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_is_new boolean;
BEGIN
    IF p_request ->> 'token_id' IS NULL OR p_request ->> 'key' IS NULL OR p_request ->> 'body' IS NULL OR p_request ->> 'ids' IS NULL THEN
        RAISE EXCEPTION 'remember_request needs "token_id", "key", "body" and "ids". Nothing was changed.' USING ERRCODE = 'TN007';
    END IF;
    INSERT INTO tenure.web_request AS r (token_id, key, body, ids, at)
    VALUES (p_request ->> 'token_id', p_request ->> 'key', p_request ->> 'body', p_request -> 'ids', v_now)
    ON CONFLICT (token_id, key) DO UPDATE SET body = excluded.body, ids = excluded.ids, answers = NULL, at = excluded.at
    WHERE r.at < v_now - interval '1 day';
    v_is_new := FOUND;
    IF v_is_new THEN
        DELETE FROM tenure.web_request AS r
        WHERE (r.token_id, r.key) IN (
            SELECT o.token_id, o.key FROM tenure.web_request AS o WHERE o.at < v_now - interval '1 day' LIMIT 100 FOR UPDATE SKIP LOCKED
        );
    END IF;
    IF p_request ->> 'answers' IS NOT NULL THEN
        UPDATE tenure.web_request AS r SET answers = p_request -> 'answers'
        WHERE r.token_id = p_request ->> 'token_id' AND r.key = p_request ->> 'key' AND r.body = p_request ->> 'body' AND r.answers IS NULL;
    END IF;
    RETURN (
        SELECT json_build_array(v_is_new, r.body, r.ids, r.answers) FROM tenure.web_request AS r
        WHERE r.token_id = p_request ->> 'token_id' AND r.key = p_request ->> 'key'
    );
END
$$;

-- append_audit: {"rows": [{"actor", "act", "subject", "reason", "detail"}]} → true. For acts that a door saw and the store did not.
CREATE OR REPLACE FUNCTION tenure.append_audit(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    PERFORM tenure.write_audit(tenure.now(), r.row ->> 'actor', r.row ->> 'act', r.row ->> 'subject', r.row ->> 'reason', r.row -> 'detail')
    FROM json_array_elements(p_request -> 'rows') AS r(row);
    RETURN to_json(true);
END
$$;

-- audit_text: what a link of the chain covers: each column after its length in bytes. SQLite: store/sqlite/access.py, row_text.
CREATE OR REPLACE FUNCTION tenure.audit_text(p_row tenure.audit) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT string_agg(octet_length(convert_to(part.text, 'UTF8')) || ':' || part.text, '' ORDER BY part.nth)
    FROM unnest(ARRAY[
        p_row.seq::text, tenure.to_us(p_row.at)::text, p_row.actor, p_row.act, p_row.subject,
        CASE WHEN p_row.reason IS NULL THEN '-' ELSE '+' || p_row.reason END, p_row.detail::text
    ]) WITH ORDINALITY AS part(text, nth)
$$;

-- seal_audit: {"limit"} → [number, hash, added, more]. One caller at a time; rows that commit late get a later link.
CREATE OR REPLACE FUNCTION tenure.seal_audit(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit integer := (p_request ->> 'limit')::integer;
    v_number bigint := 0;
    v_hash text := '';
    v_after text;
    v_added integer := 0;
    v_row tenure.audit;
BEGIN
    LOCK TABLE tenure.audit_seal IN SHARE ROW EXCLUSIVE MODE;
    SELECT s.number, s.hash INTO v_number, v_hash FROM tenure.audit_seal AS s ORDER BY s.number DESC LIMIT 1;
    v_number := coalesce(v_number, 0);
    v_hash := coalesce(v_hash, '');
    -- Numbers are given out before the commit: a row may appear below those that have a link already.
    FOR v_row IN
        SELECT a.*
        FROM tenure.audit AS a
        WHERE a.seq > (SELECT coalesce(max(s.seq), 0) - 10000 FROM tenure.audit_seal AS s)
            AND NOT EXISTS (SELECT 1 FROM tenure.audit_seal AS s WHERE s.seq = a.seq)
        ORDER BY a.seq
        LIMIT v_limit
    LOOP
        v_number := v_number + 1;
        v_added := v_added + 1;
        v_after := encode(sha256(convert_to(v_hash || tenure.audit_text(v_row), 'UTF8')), 'hex');
        INSERT INTO tenure.audit_seal (number, seq, previous, hash) VALUES (v_number, v_row.seq, v_hash, v_after);
        v_hash := v_after;
    END LOOP;
    RETURN json_build_array(v_number, v_hash, v_added, v_added >= v_limit);
END
$$;

-- list_sealed: {"after", "limit"} → [[number, seq, previous, hash, text of the audit row or null]].
CREATE OR REPLACE FUNCTION tenure.list_sealed(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(json_build_array(
        s.number, s.seq, s.previous, s.hash, CASE WHEN a.seq IS NULL THEN NULL ELSE tenure.audit_text(a) END
    ) ORDER BY s.number), '[]')
    FROM (
        SELECT * FROM tenure.audit_seal AS l
        WHERE l.number > (p_request ->> 'after')::bigint
        ORDER BY l.number
        LIMIT (p_request ->> 'limit')::integer
    ) AS s
    LEFT JOIN tenure.audit AS a ON a.seq = s.seq
$$;

-- count_unsealed: {} → how many audit rows have no link yet, up to 10,000.
CREATE OR REPLACE FUNCTION tenure.count_unsealed(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT to_json(count(*))
    FROM (
        SELECT 1 FROM tenure.audit AS a WHERE NOT EXISTS (SELECT 1 FROM tenure.audit_seal AS s WHERE s.seq = a.seq) LIMIT 10000
    ) AS missing
$$;

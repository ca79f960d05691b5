-- The output of running jobs. store/streams.py is the specification.

-- append_streams: {"chunks": [{"job_id", "token", "name", "part", "text"}]} → {"lost": [job_id], "full": [job_id]}. Each chunk is fenced by
-- its token. `part` numbers what this grant writes to the stream, from 1 on: a part that it has written before is passed over, so a call may be
-- repeated. Without `part` every call adds to the stream.
CREATE OR REPLACE FUNCTION tenure.append_streams(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_grant record;
    v_lost uuid[] := '{}';
    v_full uuid[] := '{}';
BEGIN
    FOR v_grant IN  -- by rising id, as the locks ask for
        SELECT tenure.as_uuid(e.value ->> 'job_id') AS job_id, (e.value ->> 'token')::bigint AS token, array_agg(e.value ORDER BY e.nth) AS chunks
        FROM json_array_elements(p_request -> 'chunks') WITH ORDINALITY AS e(value, nth)
        GROUP BY 1, 2
        ORDER BY 1, 2
    LOOP
        IF (tenure.held_job(json_build_object('job_id', v_grant.job_id, 'token', v_grant.token), v_now)).id IS NULL THEN
            v_lost := v_lost || v_grant.job_id;
        ELSIF tenure.put_chunks(v_grant.job_id, v_grant.token, v_grant.chunks, v_now) THEN
            v_full := v_full || v_grant.job_id;
        END IF;
    END LOOP;
    RETURN json_build_object('lost', v_lost, 'full', v_full);
END
$$;

-- put_chunks: add chunks to the streams of a job that the caller has locked, its token checked. Answers whether text was dropped because the job
-- has given out as much as is kept: 8 MiB of all its streams, each chunk counted as its text and 128 bytes.
CREATE OR REPLACE FUNCTION tenure.put_chunks(p_job_id uuid, p_token bigint, p_chunks json[], p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_cost constant bigint := 128;
    v_job_bytes constant bigint := 8388608;
    v_bytes bigint;
    v_streams bigint;
    v_is_newer boolean;
    v_chunk record;
    v_stream tenure.stream;
    v_kind text;
    v_is_full boolean := false;
BEGIN
    SELECT coalesce(sum(s.bytes), 0), count(*), coalesce(bool_or(s.token < p_token), false)
    INTO v_bytes, v_streams, v_is_newer
    FROM tenure.stream AS s
    WHERE s.job_id = p_job_id;
    IF v_is_newer THEN
        -- What the streams hold is of earlier grants: readers are told to drop it, and if it takes more than half it goes.
        IF v_bytes > v_job_bytes / 2 THEN
            DELETE FROM tenure.stream_chunk AS c WHERE c.job_id = p_job_id;
            UPDATE tenure.stream AS s SET bytes = 0 WHERE s.job_id = p_job_id;
            v_bytes := 0;
        END IF;
        INSERT INTO tenure.stream_chunk (job_id, name, "offset", kind, token, text, at)
        SELECT p_job_id, s.name, s.last + 1, 'reset', p_token, '', p_now
        FROM tenure.stream AS s
        WHERE s.job_id = p_job_id;
        UPDATE tenure.stream AS s
        SET token = p_token,
            part = 0,
            last = s.last + 1,
            bytes = s.bytes + v_cost,
            is_full = false
        WHERE s.job_id = p_job_id;
        v_bytes := v_bytes + v_streams * v_cost;
    END IF;
    FOR v_chunk IN
        SELECT c.name, c.part, coalesce(c.text, '') AS text, octet_length(coalesce(c.text, '')) + v_cost AS bytes
        FROM unnest(p_chunks) WITH ORDINALITY AS e(value, nth)
        CROSS JOIN LATERAL json_to_record(e.value) AS c(name text, part bigint, text text)
        ORDER BY e.nth
    LOOP
        IF coalesce(btrim(v_chunk.name), '') = '' OR octet_length(v_chunk.name) > 255 THEN
            RAISE EXCEPTION 'A stream needs a name of 1 to 255 bytes. Nothing was written.' USING ERRCODE = 'TN007';
        ELSIF v_chunk.bytes > 65536 + v_cost THEN
            RAISE EXCEPTION 'Stream %: a chunk is text of up to 65,536 bytes. Nothing was written.', v_chunk.name USING ERRCODE = 'TN007';
        END IF;
        SELECT * INTO v_stream FROM tenure.stream AS s WHERE s.job_id = p_job_id AND s.name = v_chunk.name;
        IF NOT FOUND THEN
            IF v_streams >= 100 THEN
                v_is_full := true;
                CONTINUE;
            END IF;
            INSERT INTO tenure.stream AS s (job_id, name, token) VALUES (p_job_id, v_chunk.name, p_token) RETURNING s.* INTO v_stream;
            v_streams := v_streams + 1;
        END IF;
        CONTINUE WHEN v_chunk.part <= v_stream.part;
        v_is_full := v_is_full OR v_stream.is_full;
        CONTINUE WHEN v_stream.is_full;
        v_kind := CASE WHEN v_bytes + v_chunk.bytes > v_job_bytes THEN 'truncated' ELSE 'text' END;
        IF v_kind = 'truncated' THEN
            v_is_full := true;
            v_chunk.text := '';
            v_chunk.bytes := v_cost;
        END IF;
        INSERT INTO tenure.stream_chunk (job_id, name, "offset", kind, token, text, at)
        VALUES (p_job_id, v_chunk.name, v_stream.last + 1, v_kind, p_token, v_chunk.text, p_now);
        UPDATE tenure.stream AS s
        SET part = coalesce(v_chunk.part, s.part + 1),
            last = s.last + 1,
            bytes = s.bytes + v_chunk.bytes,
            is_full = v_kind = 'truncated'
        WHERE s.job_id = p_job_id AND s.name = v_chunk.name;
        v_bytes := v_bytes + v_chunk.bytes;
    END LOOP;
    RETURN v_is_full;
END
$$;

-- read_stream: {"job_id", "name", "after", "limit"} → {"is_over", "chunks": [[offset, kind, text, token, at]], "more"}, null if there is no such
-- job. A page ends with the chunk that passes 256 KiB. The job's state is read first: where it has ended, every chunk was committed before.
CREATE OR REPLACE FUNCTION tenure.read_stream(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_job_id uuid := tenure.as_uuid(p_request ->> 'job_id');
    v_name text := p_request ->> 'name';
    v_after bigint := coalesce((p_request ->> 'after')::bigint, 0);
    v_limit bigint := tenure.page_limit(p_request);
    v_is_over boolean;
    v_answer json;
BEGIN
    SELECT j.finished_at IS NOT NULL INTO v_is_over
    FROM tenure.job AS j
    WHERE j.id = v_job_id AND tenure.is_seen(j.enqueued_by, j.lease_login);
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    WITH page AS MATERIALIZED (
        SELECT c.offset AS at_offset, c.kind, c.text, c.token, c.at
        FROM tenure.stream_chunk AS c
        WHERE c.job_id = v_job_id AND c.name = v_name AND c.offset > v_after
            AND NOT EXISTS (SELECT 1 FROM tenure.stream AS s WHERE s.job_id = v_job_id AND s.name = v_name AND s.is_gone)
        ORDER BY c.offset
        LIMIT v_limit + 1
    ), sized AS (
        SELECT p.*,
            row_number() OVER (ORDER BY p.at_offset) AS nth,
            sum(octet_length(p.text)) OVER (ORDER BY p.at_offset) - octet_length(p.text) AS bytes_before
        FROM page AS p
    )
    SELECT json_build_object(
        'is_over', v_is_over,
        'chunks', coalesce(
            json_agg(json_build_array(s.at_offset, s.kind, s.text, s.token, tenure.to_us(s.at)) ORDER BY s.at_offset)
                FILTER (WHERE s.nth <= v_limit AND s.bytes_before <= 262144), '[]'),
        'more', coalesce(bool_or(s.nth > v_limit OR s.bytes_before > 262144), false))
    INTO v_answer
    FROM sized AS s;
    RETURN v_answer;
END
$$;

-- list_streams: {"job_id"} → [[name, last offset, bytes, is_full]] by name.
CREATE OR REPLACE FUNCTION tenure.list_streams(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(json_build_array(s.name, s.last, s.bytes, s.is_full) ORDER BY s.name COLLATE "C"), '[]')
    FROM tenure.stream AS s
    WHERE s.job_id = tenure.as_uuid(p_request ->> 'job_id') AND NOT s.is_gone AND tenure.sees_job(s.job_id)
$$;

-- drop_streams: remove chunks of cleaned jobs, up to a limit, and streams that have none left. Answers how many chunks went.
CREATE OR REPLACE FUNCTION tenure.drop_streams(p_limit bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_chunks bigint;
BEGIN
    DELETE FROM tenure.stream_chunk AS c
    USING (
        SELECT o.job_id, o.name, o.offset AS at_offset
        FROM tenure.stream AS s
        JOIN tenure.stream_chunk AS o ON o.job_id = s.job_id AND o.name = s.name
        WHERE s.is_gone
        LIMIT p_limit
    ) AS gone
    WHERE c.job_id = gone.job_id AND c.name = gone.name AND c.offset = gone.at_offset;
    GET DIAGNOSTICS v_chunks = ROW_COUNT;
    IF v_chunks < p_limit THEN
        DELETE FROM tenure.stream AS s
        WHERE (s.job_id, s.name) IN (
            SELECT g.job_id, g.name
            FROM tenure.stream AS g
            WHERE g.is_gone AND NOT EXISTS (SELECT 1 FROM tenure.stream_chunk AS c WHERE c.job_id = g.job_id AND c.name = g.name)
            LIMIT p_limit
        );
    END IF;
    RETURN v_chunks;
END
$$;

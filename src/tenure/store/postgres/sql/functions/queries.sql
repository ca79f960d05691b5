-- Reads, and how rows and moments are put into JSON. Nothing here writes.

-- to_us, from_us: moments on the wire are whole microseconds since 1970, exact both ways.
-- 'infinity' is the largest bigint, '-infinity' the smallest. STABLE, not IMMUTABLE: only so can the planner inline them.

CREATE OR REPLACE FUNCTION tenure.to_us(p_at timestamptz) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_at = 'infinity'::timestamptz THEN 9223372036854775807
        WHEN p_at = '-infinity'::timestamptz THEN -9223372036854775808
        ELSE (EXTRACT(epoch FROM p_at) * 1000000)::bigint
    END
$$;

CREATE OR REPLACE FUNCTION tenure.from_us(p_us bigint) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_us = 9223372036854775807 THEN 'infinity'::timestamptz
        WHEN p_us = -9223372036854775808 THEN '-infinity'::timestamptz
        -- In two parts: an interval is multiplied as a double, which holds no more than 53 bits exactly.
        ELSE 'epoch'::timestamptz + p_us / 3600000000 * interval '1 hour' + p_us % 3600000000 * interval '1 microsecond'
    END
$$;

-- now_us: the store's clock for clients that want to read it.
CREATE OR REPLACE FUNCTION tenure.now_us() RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT tenure.to_us(tenure.now()) $$;

-- schema_version: the newest migration in this database. A function, because the roles may not read the ledger itself.
CREATE OR REPLACE FUNCTION tenure.schema_version() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT coalesce(max(m.number), 0) FROM tenure.migration AS m $$;

-- schema_checksum: the hash of the script that made the newest version. Another hash for the same version is another text.
CREATE OR REPLACE FUNCTION tenure.schema_checksum() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT m.checksum FROM tenure.migration AS m ORDER BY m.number DESC LIMIT 1 $$;

-- schema_compatible_from: the oldest version that a program may know and still use this database. A program that knows an older
-- one must not.
CREATE OR REPLACE FUNCTION tenure.schema_compatible_from() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT max(m.compatible_from) FROM tenure.migration AS m $$;

-- show_*: rows as the JSON that the reads answer with. Moments are microseconds; names are the model's, not the columns'.
-- as_uuid: an id from outside; what is no UUID names nothing, and is not an error.

CREATE OR REPLACE FUNCTION tenure.as_uuid(p_text text) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_text ~ '^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$' THEN p_text::uuid
    END
$$;

-- text_list: a JSON array of texts; null and [] both mean no restriction and give null.
CREATE OR REPLACE FUNCTION tenure.text_list(p_list json) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN pg_catalog.json_typeof(p_list) = 'array'
            THEN (SELECT pg_catalog.array_agg(e.value) FROM pg_catalog.json_array_elements_text(p_list) AS e)
    END
$$;

-- page_limit: how many rows a read may answer with.
CREATE OR REPLACE FUNCTION tenure.page_limit(p_request json) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := coalesce((p_request ->> 'limit')::bigint, 50);
BEGIN
    IF v_limit < 1 THEN
        RAISE EXCEPTION 'The limit must be at least 1, not %.', v_limit USING ERRCODE = 'TN007';
    END IF;
    RETURN v_limit;
END
$$;

CREATE OR REPLACE FUNCTION tenure.show_job(p_job tenure.job) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.row_to_json(shown)
    FROM (
        SELECT
            (p_job).id,
            (p_job).queue,
            (p_job).kind,
            (p_job).state,
            (p_job).priority,
            tenure.readable((p_job).payload) AS payload,
            tenure.to_us((p_job).run_at) AS run_at,
            (p_job).attempt,
            (p_job).max_attempts,
            (p_job).crashes,
            (p_job).suspicion,
            (p_job).token,
            tenure.to_us((p_job).created_at) AS created_at,
            tenure.to_us((p_job).updated_at) AS updated_at,
            (p_job).payload_hash,
            (p_job).lease_owner,
            tenure.to_us((p_job).lease_until) AS lease_until,
            (p_job).idempotency_key AS key,
            (p_job).affinity_key,
            (p_job).concurrency_key,
            (p_job).limiter,
            tenure.to_us((p_job).cancel_requested_at) AS cancel_requested_at,
            (p_job).waiting_for,
            (p_job).source_ref,
            (p_job).target_ref,
            (p_job).payload_ref,
            (p_job).actor,
            (p_job).created_by_user_id,
            (p_job).requested_by_user_id,
            (p_job).tenant,
            (p_job).workflow_id,
            (p_job).parent_id,
            (p_job).group_id,
            (p_job).step_token,
            (p_job).run_id,
            (p_job).trace,
            tenure.readable((p_job).backoff) AS backoff,
            tenure.readable((p_job).progress) AS progress,
            tenure.readable((p_job).result) AS result,
            (p_job).result_summary,
            (p_job).artifacts_path,
            (p_job).last_error,
            (p_job).failure_class,
            tenure.to_us((p_job).claimed_at) AS claimed_at,
            tenure.to_us((p_job).started_at) AS started_at,
            tenure.to_us((p_job).finished_at) AS finished_at,
            tenure.to_us((p_job).cleaned_at) AS cleaned_at
    ) AS shown
$$;

CREATE OR REPLACE FUNCTION tenure.show_dead_letter(p_letter tenure.dead_letter) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.row_to_json(shown)
    FROM (
        SELECT
            (p_letter).id,
            (p_letter).job_id,
            (p_letter).queue,
            (p_letter).kind,
            (p_letter).state,
            tenure.readable((p_letter).payload) AS payload,
            (p_letter).attempts,
            (p_letter).crashes,
            (p_letter).failure_class,
            (p_letter).final_error,
            (p_letter).fingerprint,
            tenure.to_us((p_letter).moved_at) AS moved_at,
            (p_letter).moved_by,
            (p_letter).triage,
            (p_letter).triage_note,
            tenure.to_us((p_letter).triaged_at) AS triaged_at,
            (p_letter).triaged_by,
            (p_letter).owner,
            (p_letter).idempotency_key AS key,
            (p_letter).actor,
            (p_letter).run_id,
            (p_letter).workflow_id,
            (p_letter).source_ref,
            (p_letter).target_ref,
            (p_letter).payload_ref
    ) AS shown
$$;

-- In plpgsql, which keeps the plan: every worker asks for its queues each minute, and a function in SQL is planned anew each time.
CREATE OR REPLACE FUNCTION tenure.show_queue(p_queue tenure.queue) RETURNS json
LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN (SELECT pg_catalog.row_to_json(shown)
    FROM (
        SELECT
            (p_queue).name,
            (p_queue).profile,
            (p_queue).priority_order,
            (p_queue).priority_default,
            (p_queue).aging_seconds,
            (p_queue).start_on_claim,
            (p_queue).max_attempts,
            (p_queue).backoff_shape,
            (p_queue).backoff_base_seconds,
            (p_queue).backoff_power,
            (p_queue).backoff_factor,
            (p_queue).backoff_cap_seconds,
            (p_queue).backoff_jitter,
            (p_queue).lease_seconds,
            (p_queue).lease_max_seconds,
            (p_queue).key_scope,
            (p_queue).key_space,
            (p_queue).key_required,
            (p_queue).key_window_seconds,
            (p_queue).key_conflict,
            (p_queue).revive,
            (p_queue).on_unknown_kind,
            (p_queue).forbidden_keys,
            (p_queue).concurrency,
            (p_queue).concurrency_per_key,
            (p_queue).retain_seconds,
            (p_queue).events,
            (p_queue).agent_events,
            tenure.to_us((p_queue).paused_at) AS paused_at,
            (p_queue).paused_by,
            tenure.to_us((p_queue).created_at) AS created_at,
            tenure.to_us((p_queue).updated_at) AS updated_at
    ) AS shown);
END
$$;

CREATE OR REPLACE FUNCTION tenure.show_effect(p_effect tenure.effect) RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.row_to_json(shown)
    FROM (
        SELECT
            (p_effect).job_id,
            (p_effect).step,
            (p_effect).name,
            (p_effect).state,
            (p_effect).token,
            (p_effect).key,
            tenure.readable((p_effect).args) AS args,
            tenure.readable((p_effect).result) AS result,
            (p_effect).error,
            tenure.to_us((p_effect).intended_at) AS intended_at,
            tenure.to_us((p_effect).updated_at) AS updated_at
    ) AS shown
$$;

-- get_jobs: {"job_ids": [id, …]} → the jobs that are there and that the caller may read, in no order.
CREATE OR REPLACE FUNCTION tenure.get_jobs(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(tenure.show_job(j)), '[]')
    FROM tenure.job AS j
    WHERE j.id = ANY (ARRAY(SELECT tenure.as_uuid(e.value) FROM json_array_elements_text(p_request -> 'job_ids') AS e))
        AND tenure.is_seen(j.enqueued_by, j.lease_login)
$$;

-- show_foreign: a job that is neither the caller's own nor held by it: that it is there, and how it goes, without what it carries.
CREATE OR REPLACE FUNCTION tenure.show_foreign(p_job tenure.job) RETURNS json
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    p_job.payload := '{"$unreadable": "It belongs to another login."}';
    p_job.payload_hash := NULL;
    p_job.progress := NULL;
    p_job.result := NULL;
    p_job.result_summary := NULL;
    p_job.last_error := NULL;
    RETURN tenure.show_job(p_job);
END
$$;

-- list_jobs: the jobs that match, newest first by id. One more row than `limit` asks for tells that the list goes on.
-- A worker sees which jobs there are, and the contents of its own and of those it holds.
--
-- The condition is put together from the fragments below, so that each question is planned for what it asks; every
-- value travels as a parameter. `retry_waiting` and `cleaned` are states that are shown, not stored.
CREATE OR REPLACE FUNCTION tenure.list_jobs(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_states text[] := tenure.text_list(p_request -> 'states');
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_kinds text[] := tenure.text_list(p_request -> 'kinds');
    v_wanted text := 'true';
    v_answer json;
BEGIN
    IF v_states && ARRAY['retry_waiting', 'cleaned'] THEN
        v_wanted := v_wanted || $w$ AND (
            j.state = ANY ($1)
            OR ('retry_waiting' = ANY ($1) AND j.state = 'queued' AND j.attempt > 0 AND j.failure_class IS NOT NULL)
            OR ('cleaned' = ANY ($1) AND j.cleaned_at IS NOT NULL)
        )$w$;
    ELSIF v_states IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.state = ANY ($1)';
    END IF;
    IF v_queues IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.queue = ANY ($2)';
    END IF;
    IF v_kinds IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.kind = ANY ($3)';
    END IF;
    IF p_request ->> 'key' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.idempotency_key = $4';
    END IF;
    IF p_request ->> 'workflow_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.workflow_id = $5';
    END IF;
    IF p_request ->> 'parent_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.parent_id = $6';
    END IF;
    IF p_request ->> 'profile' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.profile = $7';
    END IF;
    IF p_request ->> 'worker' IS NOT NULL THEN
        v_wanted := v_wanted || $w$ AND j.lease_owner = $8 AND j.state IN ('leased', 'running')$w$;
    END IF;
    IF p_request ->> 'after' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND j.id < $9';
    END IF;
    EXECUTE 'SELECT json_agg(CASE WHEN $11 OR coalesce($12 IN (j.enqueued_by, j.lease_login), false) THEN tenure.show_job(j) '
        'ELSE tenure.show_foreign(j) END ORDER BY j.id DESC) FROM ('
        'SELECT j.* FROM tenure.job AS j WHERE ' || v_wanted || ' ORDER BY j.id DESC LIMIT $10) AS j'
    INTO v_answer
    USING v_states, v_queues, v_kinds, p_request ->> 'key',
        tenure.as_uuid(p_request ->> 'workflow_id'), tenure.as_uuid(p_request ->> 'parent_id'),
        p_request ->> 'profile', p_request ->> 'worker', tenure.as_uuid(p_request ->> 'after'), v_limit + 1,
        tenure.reads_all(), tenure.login();
    RETURN coalesce(v_answer, '[]');
END
$$;

-- live_jobs: every job that is still to do, by the three partial indexes that hold them all: the ended ones cost nothing. A waiting
-- job is never due. Plain SQL without settings of its own, so that it is planned as a part of what asks for it.
CREATE OR REPLACE FUNCTION tenure.live_jobs() RETURNS SETOF tenure.job
LANGUAGE sql STABLE
AS $$
    SELECT j.* FROM tenure.job AS j WHERE j.state = 'queued' AND j.is_due
    UNION ALL
    SELECT j.* FROM tenure.job AS j WHERE NOT j.is_due AND j.state IN ('queued', 'waiting')
    UNION ALL
    SELECT j.* FROM tenure.job AS j WHERE j.state IN ('leased', 'running')
$$;

-- count_jobs: jobs by queue, kind and state, exact at the moment of asking. Those that are still to do are counted by their indexes.
CREATE OR REPLACE FUNCTION tenure.count_jobs(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_states text[] := tenure.text_list(p_request -> 'states');
BEGIN
    IF v_states <@ '{queued,leased,running,waiting}' THEN
        RETURN (
            SELECT coalesce(json_agg(row_to_json(c) ORDER BY c.queue, c.kind, c.state), '[]')
            FROM (
                SELECT j.queue, j.kind, j.state, count(*) AS jobs, tenure.to_us(min(j.created_at)) AS oldest_at
                FROM tenure.live_jobs() AS j
                WHERE (v_queues IS NULL OR j.queue = ANY (v_queues)) AND j.state = ANY (v_states)
                GROUP BY j.queue, j.kind, j.state
            ) AS c
        );
    END IF;
    RETURN (
        SELECT coalesce(json_agg(row_to_json(c) ORDER BY c.queue, c.kind, c.state), '[]')
        FROM (
            SELECT j.queue, j.kind, j.state, count(*) AS jobs, tenure.to_us(min(j.created_at)) AS oldest_at
            FROM tenure.job AS j
            WHERE (v_queues IS NULL OR j.queue = ANY (v_queues))
                AND (v_states IS NULL OR j.state = ANY (v_states))
            GROUP BY j.queue, j.kind, j.state
        ) AS c
    );
END
$$;

-- list_attempts: {"job_id"} → its attempts that did not end well, oldest first.
CREATE OR REPLACE FUNCTION tenure.list_attempts(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT coalesce(json_agg(row_to_json(shown) ORDER BY shown.token), '[]')
    FROM (
        SELECT
            a.job_id,
            a.token,
            a.attempt,
            a.worker,
            tenure.to_us(a.claimed_at) AS claimed_at,
            tenure.to_us(a.ended_at) AS ended_at,
            a.outcome,
            a.failure_class,
            a.error,
            a.fingerprint,
            tenure.to_us(a.run_at) AS run_at
        FROM tenure.attempt AS a
        WHERE a.job_id = tenure.as_uuid(p_request ->> 'job_id') AND tenure.sees_job(a.job_id)
    ) AS shown
$$;

-- list_dead_letters: those that match, newest first. `after` is [moved_at, id] of the last one seen;
-- one more row than `limit` asks for tells that the list goes on.
CREATE OR REPLACE FUNCTION tenure.list_dead_letters(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_triage text[] := tenure.text_list(p_request -> 'triage');
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_kinds text[] := tenure.text_list(p_request -> 'kinds');
    v_ids uuid[] := (
        SELECT array_agg(coalesce(tenure.as_uuid(t.id), '00000000-0000-0000-0000-000000000000'))
        FROM unnest(tenure.text_list(p_request -> 'ids')) AS t(id)
    );
    v_wanted text := 'true';
    v_answer json;
BEGIN
    IF v_triage IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.triage = ANY ($1)';
    END IF;
    IF v_queues IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.queue = ANY ($2)';
    END IF;
    IF v_kinds IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.kind = ANY ($3)';
    END IF;
    IF v_ids IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.id = ANY ($4)';
    END IF;
    IF p_request ->> 'fingerprint' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.fingerprint = $5';
    END IF;
    IF p_request ->> 'job_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND d.job_id = $6';
    END IF;
    IF p_request ->> 'after' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND (d.moved_at, d.id) < ($7, $8)';
    END IF;
    EXECUTE 'SELECT json_agg(tenure.show_dead_letter(d) ORDER BY d.moved_at DESC, d.id DESC) FROM ('
        'SELECT d.* FROM tenure.dead_letter AS d WHERE ' || v_wanted
        || ' ORDER BY d.moved_at DESC, d.id DESC LIMIT $9) AS d'
    INTO v_answer
    USING v_triage, v_queues, v_kinds, v_ids, p_request ->> 'fingerprint', tenure.as_uuid(p_request ->> 'job_id'),
        tenure.from_us((p_request -> 'after' ->> 0)::bigint), tenure.as_uuid(p_request -> 'after' ->> 1), v_limit + 1;
    RETURN coalesce(v_answer, '[]');
END
$$;

-- group_dead_letters: deaths that look alike, most letters first. The newest of each group is its sample.
CREATE OR REPLACE FUNCTION tenure.group_dead_letters(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_triage text[] := tenure.text_list(p_request -> 'triage');
BEGIN
    RETURN (
        SELECT coalesce(json_agg(row_to_json(g) ORDER BY g.letters DESC, g.last_at DESC, g.fingerprint), '[]')
        FROM (
            SELECT
                d.fingerprint,
                d.kind,
                d.queue,
                count(*) AS letters,
                count(*) FILTER (WHERE d.triage = 'pending') AS pending,
                tenure.to_us(min(d.moved_at)) AS first_at,
                tenure.to_us(max(d.moved_at)) AS last_at,
                (array_agg(d.final_error ORDER BY d.moved_at DESC, d.job_id DESC, d.id DESC))[1] AS sample_error,
                (array_agg(d.job_id ORDER BY d.moved_at DESC, d.job_id DESC, d.id DESC))[1] AS sample_job_id
            FROM tenure.dead_letter AS d
            WHERE v_triage IS NULL OR d.triage = ANY (v_triage)
            GROUP BY d.fingerprint, d.kind, d.queue
            ORDER BY letters DESC, last_at DESC, d.fingerprint
            LIMIT v_limit
        ) AS g
    );
END
$$;

-- list_queues: every queue, or the named ones, by name.
CREATE OR REPLACE FUNCTION tenure.list_queues(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_names text[] := tenure.text_list(p_request -> 'names');
BEGIN
    RETURN (
        SELECT coalesce(json_agg(tenure.show_queue(q) ORDER BY q.name COLLATE "C"), '[]')
        FROM tenure.queue AS q
        WHERE v_names IS NULL OR q.name = ANY (v_names)
    );
END
$$;

-- list_gates: the four global gates, which are open without a row, and every other that has one, by name.
CREATE OR REPLACE FUNCTION tenure.list_gates(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT json_agg(row_to_json(shown) ORDER BY shown.name COLLATE "C")
    FROM (
        SELECT
            coalesce(g.name, always.name) AS name,
            coalesce(g.is_open, true) AS is_open,
            tenure.to_us(g.updated_at) AS updated_at,
            g.actor
        FROM (VALUES ('master'), ('worker'), ('notify'), ('heartbeat')) AS always(name)
        FULL JOIN tenure.gate AS g ON g.name = always.name
    ) AS shown
$$;

-- list_workers: every worker that has a row, most recently seen first. The leader is the owner of the named lease `leader`.
CREATE OR REPLACE FUNCTION tenure.list_workers(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
BEGIN
    RETURN (
        SELECT coalesce(json_agg(row_to_json(shown) ORDER BY shown.last_seen_at DESC, shown.id), '[]')
        FROM (
            SELECT
                w.id,
                w.hostname,
                w.pid,
                w.queues,
                w.kinds,
                w.concurrency,
                w.version,
                w.executor_kind,
                w.status,
                w.current_job_id,
                tenure.readable(w.info::json) AS info,
                w.ticks,
                tenure.to_us(w.started_at) AS started_at,
                tenure.to_us(w.last_seen_at) AS last_seen_at,
                coalesce(h.held, 0) AS held,
                l.until IS NOT NULL AS is_leader,
                tenure.to_us(l.until) AS leader_until
            FROM tenure.worker AS w
            LEFT JOIN (
                SELECT j.lease_owner, count(*) AS held
                FROM tenure.job AS j
                WHERE j.state IN ('leased', 'running')
                GROUP BY j.lease_owner
            ) AS h ON h.lease_owner = w.id
            LEFT JOIN tenure.lease AS l ON l.name = 'leader' AND l.owner = w.id AND l.until > v_now
        ) AS shown
    );
END
$$;

-- list_events: events above `after`, in order.
CREATE OR REPLACE FUNCTION tenure.list_events(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_kinds text[] := tenure.text_list(p_request -> 'kinds');
    v_wanted text := 'e.seq > $1';
    v_answer json;
BEGIN
    IF p_request ->> 'job_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND e.job_id = $2';
    END IF;
    IF v_queues IS NOT NULL THEN
        v_wanted := v_wanted || ' AND e.queue = ANY ($3)';
    END IF;
    IF v_kinds IS NOT NULL THEN
        v_wanted := v_wanted || ' AND e.kind = ANY ($4)';
    END IF;
    EXECUTE 'SELECT json_agg(row_to_json(shown) ORDER BY shown.seq) FROM ('
        'SELECT e.seq, tenure.to_us(e.at) AS at, e.kind, e.job_id, e.queue, tenure.readable(e.data) AS data FROM tenure.event AS e WHERE '
        || v_wanted || ' ORDER BY e.seq LIMIT $5) AS shown'
    INTO v_answer
    USING coalesce((p_request ->> 'after')::bigint, 0), tenure.as_uuid(p_request ->> 'job_id'), v_queues, v_kinds, v_limit;
    RETURN coalesce(v_answer, '[]');
END
$$;

-- event_place: a place among events, taken apart. Its text is the snapshot up to which events were read, and perhaps
--   '+seq'      events up to this number came with a dump from another server, whose transactions the snapshot cannot know;
--   '/xid.seq'  of this transaction, which the snapshot has as open, the events up to this number were read too;
--   '#seq'      of what the snapshot shows, only the events up to this number were read.
CREATE OR REPLACE FUNCTION tenure.event_place(
    p_text text,
    OUT snapshot pg_snapshot, OUT dumped bigint, OUT part_xid xid8, OUT part_seq bigint, OUT behind bigint
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_found text[] := regexp_match(p_text, '^([0-9]+:[0-9]+:[0-9,]*)(?:[+]([0-9]+))?(?:/([0-9]+)[.]([0-9]+)|#([0-9]+))?$');
BEGIN
    snapshot := v_found[1]::pg_snapshot;
    dumped := coalesce(v_found[2]::bigint, 0);
    part_xid := v_found[3]::xid8;
    part_seq := v_found[4]::bigint;
    behind := v_found[5]::bigint;
    IF snapshot IS NULL OR pg_snapshot_xmax(snapshot) > pg_snapshot_xmax(pg_current_snapshot()) THEN
        RAISE invalid_text_representation;
    END IF;
EXCEPTION WHEN invalid_text_representation OR numeric_value_out_of_range THEN
    RAISE EXCEPTION '% is no place among this database''s events. Begin anew without it.', quote_literal(left(p_text, 80))
        USING ERRCODE = 'TN007';
END
$$;

-- follow_events: events that were committed since a place, in whatever order their numbers were taken.
-- Invariant: an event is shown once, by the first answer whose snapshot shows its transaction and whose place does not. A snapshot tells which
-- transactions were open, so one that stays open for hours delays no other event and loses none of its own.
-- Pages are cut in the order of transactions, by their index, and sorted by number.
CREATE OR REPLACE FUNCTION tenure.follow_events(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_kinds text[] := tenure.text_list(p_request -> 'kinds');
    v_newest bigint := coalesce((SELECT max(e.seq) FROM tenure.event AS e), 0);
    v_now text := pg_current_snapshot()::text;
    v_wanted text := '';
    v_since record;
    v_until record;
    v_dumped text;
    v_count bigint;
    v_rows json;
    v_last_xid xid8;
    v_last_seq bigint;
    v_place text;
BEGIN
    IF p_request ->> 'place' IS NOT NULL THEN
        v_since := tenure.event_place(p_request ->> 'place');
    ELSE
        -- A row that is there although its transaction has not begun was restored from another server's dump.
        IF EXISTS (SELECT FROM tenure.event AS e WHERE e.xid >= pg_snapshot_xmax(pg_current_snapshot())) THEN
            v_now := v_now || '+' || v_newest;
        END IF;
        IF p_request ->> 'after' IS NULL THEN
            RETURN json_build_object('events', '[]'::json, 'place', v_now, 'more', false, 'newest', v_newest);
        END IF;
        v_since := tenure.event_place(v_now || '#' || (p_request ->> 'after'));
    END IF;
    v_dumped := CASE WHEN v_since.dumped > 0 THEN '+' || v_since.dumped ELSE '' END;
    v_now := pg_current_snapshot()::text || v_dumped;
    v_until := tenure.event_place(coalesce(p_request ->> 'until', v_now));
    IF p_request ->> 'job_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND e.job_id = $10';
    END IF;
    IF v_queues IS NOT NULL THEN
        v_wanted := v_wanted || ' AND e.queue = ANY ($11)';
    END IF;
    IF v_kinds IS NOT NULL THEN
        v_wanted := v_wanted || ' AND e.kind = ANY ($12)';
    END IF;
    IF v_since.behind IS NOT NULL THEN
        v_wanted := 'SELECT e.* FROM tenure.event AS e WHERE e.seq > $9 AND (pg_visible_in_snapshot(e.xid, $1) OR e.seq <= $2)'
            || v_wanted || ' ORDER BY e.seq LIMIT $8 + 1';
    ELSE
        v_wanted := ' AND e.seq > $2 AND (pg_visible_in_snapshot(e.xid, $5) OR (e.xid = $6 AND e.seq <= $7))' || v_wanted;
        v_wanted := '(SELECT 1 AS part, e.* FROM tenure.event AS e WHERE e.xid = $3 AND e.seq > $4' || v_wanted
            || ' ORDER BY e.seq LIMIT $8 + 1) UNION ALL '
            '(SELECT 2, e.* FROM tenure.event AS e WHERE e.xid = ANY (array_remove(ARRAY(SELECT pg_snapshot_xip($1)), $3))' || v_wanted
            || ' ORDER BY e.xid, e.seq LIMIT $8 + 1) UNION ALL '
            '(SELECT 3, e.* FROM tenure.event AS e WHERE e.xid >= pg_snapshot_xmax($1)' || v_wanted
            || ' ORDER BY e.xid, e.seq LIMIT $8 + 1) ORDER BY part, xid, seq LIMIT $8 + 1';
    END IF;
    EXECUTE 'WITH found AS (SELECT w.*, row_number() OVER () AS number FROM (' || v_wanted || ') AS w), '
        'page AS (SELECT * FROM found WHERE number <= $8) '
        'SELECT (SELECT count(*) FROM found), '
        '(SELECT json_agg(json_build_object(''seq'', p.seq, ''at'', tenure.to_us(p.at), ''kind'', p.kind, ''job_id'', p.job_id, '
        '''queue'', p.queue, ''data'', tenure.readable(p.data)) ORDER BY p.seq) FROM page AS p), '
        '(SELECT p.xid FROM page AS p ORDER BY p.number DESC LIMIT 1), (SELECT p.seq FROM page AS p ORDER BY p.number DESC LIMIT 1)'
    INTO v_count, v_rows, v_last_xid, v_last_seq
    USING v_since.snapshot, v_since.dumped, v_since.part_xid, v_since.part_seq, v_until.snapshot, v_until.part_xid, v_until.part_seq,
        v_limit, v_since.behind, tenure.as_uuid(p_request ->> 'job_id'), v_queues, v_kinds;
    v_place := CASE
        WHEN v_since.behind IS NOT NULL THEN
            v_since.snapshot::text || v_dumped || CASE WHEN v_count > v_limit THEN '#' || v_last_seq ELSE '' END
        WHEN v_count <= v_limit THEN coalesce(p_request ->> 'until', v_now)
        ELSE tenure.snapshot_between(v_since.snapshot, v_until.snapshot, v_since.part_xid, v_last_xid)
            || v_dumped || '/' || v_last_xid || '.' || v_last_seq
    END;
    RETURN json_build_object('events', coalesce(v_rows, '[]'), 'place', v_place, 'more', v_count > v_limit, 'newest', v_newest);
END
$$;

-- snapshot_between: the snapshot of a place between two others. Shown are `p_part`, of which the rest was read first, and what comes before
-- `p_last` in the order of transactions; `p_last` itself and all behind it stay open.
CREATE OR REPLACE FUNCTION tenure.snapshot_between(p_since pg_snapshot, p_until pg_snapshot, p_part xid8, p_last xid8) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    WITH bound AS (
        SELECT greatest(pg_snapshot_xmax(p_since)::text::numeric, p_last::text::numeric + 1) AS xmax
    ), open AS (
        SELECT x.xid::text::numeric AS xid
        FROM pg_snapshot_xip(p_since) AS x(xid)
        WHERE p_last = p_part OR (x.xid > p_last AND x.xid IS DISTINCT FROM p_part)
        UNION
        SELECT x.xid::text::numeric
        FROM pg_snapshot_xip(p_until) AS x(xid)
        UNION
        SELECT p_last::text::numeric
    )
    SELECT format('%s:%s:%s', min(o.xid), b.xmax, string_agg(o.xid::text, ',' ORDER BY o.xid))
    FROM open AS o
    JOIN bound AS b ON o.xid < b.xmax
    GROUP BY b.xmax
$$;

-- list_audit: what operators did, newest first.
CREATE OR REPLACE FUNCTION tenure.list_audit(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_subject text := p_request ->> 'subject';
    v_answer json;
BEGIN
    EXECUTE 'SELECT json_agg(row_to_json(shown) ORDER BY shown.seq DESC) FROM ('
        'SELECT a.seq, tenure.to_us(a.at) AS at, a.actor, a.act, a.subject, a.reason, tenure.readable(a.detail) AS detail FROM tenure.audit AS a'
        || ' WHERE true'
        || CASE WHEN v_subject IS NULL THEN '' ELSE ' AND a.subject = $1' END
        || CASE WHEN p_request ->> 'before' IS NULL THEN '' ELSE ' AND a.seq < $3' END
        || ' ORDER BY a.seq DESC LIMIT $2) AS shown'
    INTO v_answer
    USING v_subject, v_limit, (p_request ->> 'before')::bigint;
    RETURN coalesce(v_answer, '[]');
END
$$;

-- list_effects: the effects of a job, or all in the given states, by job and place. `after` is [job_id, step, name] of the
-- last one seen; one more row than `limit` asks for tells that the list goes on.
CREATE OR REPLACE FUNCTION tenure.list_effects(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_limit bigint := tenure.page_limit(p_request);
    v_states text[] := tenure.text_list(p_request -> 'states');
    v_wanted text := 'true';
    v_answer json;
BEGIN
    IF p_request ->> 'job_id' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND f.job_id = $1';
    END IF;
    IF v_states IS NOT NULL THEN
        v_wanted := v_wanted || ' AND f.state = ANY ($2)';
    END IF;
    IF NOT tenure.reads_all() THEN
        v_wanted := v_wanted || ' AND tenure.sees_job(f.job_id)';
    END IF;
    IF p_request ->> 'after' IS NOT NULL THEN
        v_wanted := v_wanted || ' AND (f.job_id, f.step, f.name) > ($3, $4, $5)';
    END IF;
    EXECUTE 'SELECT json_agg(tenure.show_effect(f) ORDER BY f.job_id, f.step, f.name) FROM ('
        'SELECT f.* FROM tenure.effect AS f WHERE ' || v_wanted || ' ORDER BY f.job_id, f.step, f.name LIMIT $6) AS f'
    INTO v_answer
    USING tenure.as_uuid(p_request ->> 'job_id'), v_states, tenure.as_uuid(p_request -> 'after' ->> 0),
        p_request -> 'after' ->> 1, p_request -> 'after' ->> 2, v_limit + 1;
    RETURN coalesce(v_answer, '[]');
END
$$;

-- summary: how it goes. {"window_seconds", "queues", "limit", "scan"} → {"at", "since", "is_whole", "ran", "stuck_count", "stuck", "backlog",
-- "repeated"}. Looks at jobs that ended within the window (by job_finished_idx) and at live ones (by their partial indexes), never at the rest.
CREATE OR REPLACE FUNCTION tenure.summary(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_since timestamptz := v_now - (p_request ->> 'window_seconds')::double precision * interval '1 second';
    v_queues text[] := tenure.text_list(p_request -> 'queues');
    v_limit bigint := tenure.page_limit(p_request);
    v_scan bigint := (p_request ->> 'scan')::bigint;
    v_beyond timestamptz;
BEGIN
    IF v_scan < 1 THEN
        RAISE EXCEPTION 'The scan must be at least 1, not %.', v_scan USING ERRCODE = 'TN007';
    ELSIF v_scan IS NOT NULL THEN
        -- EXECUTE here and below: planned with the values, of which a narrow window and a small scan make an index scan.
        EXECUTE 'SELECT j.finished_at FROM tenure.job AS j '
            'WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.finished_at > $1 ORDER BY j.finished_at DESC LIMIT 1 OFFSET $2'
        INTO v_beyond
        USING v_since, v_scan;
        v_since := coalesce(v_beyond, v_since);
    END IF;
    RETURN json_build_object(
        'at', tenure.to_us(v_now),
        'since', tenure.to_us(v_since),
        'is_whole', v_beyond IS NULL,
        'ran', tenure.sum_ran(v_since, v_queues, v_scan),
        'stuck_count', (
            SELECT count(*) FROM tenure.job AS j
            WHERE j.state IN ('leased', 'running') AND j.lease_until <= v_now AND (v_queues IS NULL OR j.queue = ANY (v_queues))),
        'stuck', (
            SELECT coalesce(json_agg(json_build_array(s.id, s.queue, s.kind, s.state, s.lease_owner, s.attempt, tenure.to_us(s.lease_until))
                ORDER BY s.lease_until), '[]')
            FROM (
                SELECT j.* FROM tenure.job AS j
                WHERE j.state IN ('leased', 'running') AND j.lease_until <= v_now AND (v_queues IS NULL OR j.queue = ANY (v_queues))
                ORDER BY j.lease_until LIMIT v_limit
            ) AS s),
        'backlog', tenure.sum_backlog(v_now, v_queues),
        'repeated', tenure.sum_repeated(v_since, v_queues, v_scan, v_limit));
END
$$;

-- sum_ran: what ended within the window, by queue and kind, with how long it took. No more than `p_scan` jobs may have ended in it.
CREATE OR REPLACE FUNCTION tenure.sum_ran(p_since timestamptz, p_queues text[], p_scan bigint) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_answer json;
BEGIN
    EXECUTE $ran$
        WITH newest AS (
            SELECT j.queue, j.kind, j.state, j.run_at, j.claimed_at, j.finished_at
            FROM tenure.job AS j
            WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.finished_at > $1
            ORDER BY j.finished_at DESC
            LIMIT $3
        ), ended AS (
            SELECT n.queue, n.kind, n.state, n.finished_at,
                CASE WHEN n.state = 'succeeded' THEN extract(epoch FROM n.finished_at - n.claimed_at)::double precision END AS run_seconds,
                CASE WHEN n.state = 'succeeded' THEN greatest(0, extract(epoch FROM n.claimed_at - n.run_at))::double precision END AS wait_seconds
            FROM newest AS n
            WHERE $2 IS NULL OR n.queue = ANY ($2)
        ), by_kind AS (
            SELECT e.queue, e.kind,
                count(*) FILTER (WHERE e.state = 'succeeded') AS succeeded,
                count(*) FILTER (WHERE e.state = 'failed') AS failed,
                count(*) FILTER (WHERE e.state = 'dead') AS dead,
                count(*) FILTER (WHERE e.state = 'cancelled') AS cancelled,
                avg(e.run_seconds) AS run_average,
                percentile_disc(ARRAY[0.5, 0.95, 1]) WITHIN GROUP (ORDER BY e.run_seconds) AS runs,
                percentile_disc(0.5) WITHIN GROUP (ORDER BY e.wait_seconds) AS wait_p50,
                max(e.finished_at) AS last_at
            FROM ended AS e
            GROUP BY e.queue, e.kind
        )
        SELECT coalesce(json_agg(json_build_array(
            b.queue, b.kind, b.succeeded, b.failed, b.dead, b.cancelled, b.run_average, b.runs[1], b.runs[2], b.runs[3], b.wait_p50,
            tenure.to_us(b.last_at)) ORDER BY b.queue COLLATE "C", b.kind COLLATE "C"), '[]')
        FROM by_kind AS b
    $ran$
    INTO v_answer
    USING p_since, p_queues, p_scan;
    RETURN v_answer;
END
$$;

-- sum_backlog: what waits, by queue.
CREATE OR REPLACE FUNCTION tenure.sum_backlog(p_now timestamptz, p_queues text[]) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    WITH live AS (
        SELECT j.queue, j.state, j.run_at, (j.state = 'queued' AND j.attempt > 0 AND j.failure_class IS NOT NULL) AS is_retry
        FROM tenure.live_jobs() AS j
        WHERE p_queues IS NULL OR j.queue = ANY (p_queues)
    ), by_queue AS (
        SELECT l.queue,
            count(*) FILTER (WHERE l.state = 'queued' AND l.run_at <= p_now) AS due,
            count(*) FILTER (WHERE l.state = 'queued' AND l.run_at > p_now) AS delayed,
            count(*) FILTER (WHERE l.is_retry) AS retrying,
            count(*) FILTER (WHERE l.state IN ('leased', 'running')) AS held,
            count(*) FILTER (WHERE l.state = 'waiting') AS waiting,
            min(l.run_at) FILTER (WHERE l.state = 'queued' AND l.run_at <= p_now) AS oldest_due_at
        FROM live AS l
        GROUP BY l.queue
    )
    SELECT coalesce(json_agg(json_build_array(
        b.queue, b.due, b.delayed, b.retrying, b.held, b.waiting, tenure.to_us(b.oldest_due_at)) ORDER BY b.queue COLLATE "C"), '[]')
    FROM by_queue AS b
$$;

-- sum_repeated: keys that several jobs carry, among those to do and those that ended within the window, which are no more than `p_scan`.
CREATE OR REPLACE FUNCTION tenure.sum_repeated(p_since timestamptz, p_queues text[], p_scan bigint, p_limit bigint) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_answer json;
BEGIN
    EXECUTE $repeated$
        WITH newest AS (
            SELECT j.id, j.queue, j.kind, j.idempotency_key, j.finished_at
            FROM tenure.job AS j
            WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.finished_at > $1
            ORDER BY j.finished_at DESC
            LIMIT $3
        ), keyed AS (
            SELECT j.id, j.queue, j.kind, j.idempotency_key, j.finished_at
            FROM tenure.live_jobs() AS j
            WHERE j.idempotency_key IS NOT NULL AND ($2 IS NULL OR j.queue = ANY ($2))
            UNION ALL
            SELECT n.id, n.queue, n.kind, n.idempotency_key, n.finished_at
            FROM newest AS n
            WHERE n.idempotency_key IS NOT NULL AND ($2 IS NULL OR n.queue = ANY ($2))
        ), repeated AS (
            SELECT k.queue, k.kind, k.idempotency_key, count(*) AS jobs, count(*) FILTER (WHERE k.finished_at IS NULL) AS active,
                max(k.id::text) AS newest_id
            FROM keyed AS k
            GROUP BY k.queue, k.kind, k.idempotency_key
            HAVING count(*) > 1
            ORDER BY count(*) DESC, k.queue COLLATE "C", k.kind COLLATE "C", k.idempotency_key COLLATE "C"
            LIMIT $4
        )
        SELECT coalesce(json_agg(json_build_array(r.queue, r.kind, r.idempotency_key, r.jobs, r.active, r.newest_id)
            ORDER BY r.jobs DESC, r.queue COLLATE "C", r.kind COLLATE "C", r.idempotency_key COLLATE "C"), '[]')
        FROM repeated AS r
    $repeated$
    INTO v_answer
    USING p_since, p_queues, p_scan, p_limit;
    RETURN v_answer;
END
$$;

-- standing: where a job stands in its queue. {"job_id", "cap"} → {"at", "ahead", "held_in_queue", "held_with_key", "last_event"} or null.
CREATE OR REPLACE FUNCTION tenure.standing(p_request json) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_job tenure.job;
BEGIN
    SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = tenure.as_uuid(p_request ->> 'job_id');
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN json_build_object(
        'at', tenure.to_us(tenure.now()),
        'ahead', CASE WHEN v_job.state = 'queued' THEN (
            SELECT count(*) FROM (
                SELECT 1 FROM tenure.job AS j
                WHERE j.queue = v_job.queue AND j.state = 'queued' AND j.is_due
                    AND (j.suspicion >= 2, coalesce(j.limiter, '')) >= (false, coalesce(v_job.limiter, ''))
                    AND (j.suspicion >= 2, coalesce(j.limiter, ''), j.rank, j.run_at, j.id)
                        < (false, coalesce(v_job.limiter, ''), v_job.rank, v_job.run_at, v_job.id)
                LIMIT (p_request ->> 'cap')::bigint
            ) AS before) ELSE 0 END,
        'held_in_queue', (SELECT count(*) FROM tenure.job AS j WHERE j.state IN ('leased', 'running') AND j.queue = v_job.queue),
        'held_with_key', (SELECT count(*) FROM tenure.job AS j
            WHERE j.state IN ('leased', 'running') AND j.queue = v_job.queue AND j.concurrency_key = v_job.concurrency_key),
        'last_event', (SELECT e.kind FROM tenure.event AS e WHERE e.job_id = v_job.id ORDER BY e.seq DESC LIMIT 1));
END
$$;

-- prunable: what a prune would remove if its limit were none.
CREATE OR REPLACE FUNCTION tenure.prunable(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    -- What it cleans may be old enough to go at once.
    WITH clean AS (
        SELECT j.id, j.finished_at
        FROM tenure.job AS j
        JOIN tenure.queue AS q ON q.name = j.queue
        WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL
            AND j.finished_at <= tenure.now()
                - coalesce((p_request ->> 'older_than_seconds')::double precision, q.retain_seconds) * interval '1 second'
            AND NOT EXISTS (SELECT 1 FROM tenure.dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
    ), gone AS (
        SELECT c.id
        FROM clean AS c
        WHERE c.finished_at <= tenure.now() - (p_request ->> 'delete_after_seconds')::double precision * interval '1 second'
        UNION ALL
        SELECT j.id
        FROM tenure.job AS j
        WHERE j.cleaned_at IS NOT NULL
            AND j.finished_at <= tenure.now() - (p_request ->> 'delete_after_seconds')::double precision * interval '1 second'
            AND NOT EXISTS (SELECT 1 FROM tenure.dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
    )
    SELECT json_build_object(
        'cleaned', (SELECT count(*) FROM clean),
        'deleted', (SELECT count(*) FROM gone),
        'events', (SELECT count(*) FROM tenure.event AS e WHERE e.job_id IN (SELECT g.id FROM gone AS g)),
        'workers', (SELECT count(*) FROM tenure.worker AS w
            WHERE w.last_seen_at <= tenure.now() - coalesce((p_request ->> 'worker_seconds')::double precision, 86400) * interval '1 second'),
        'metrics', (SELECT count(*) FROM tenure.metric AS m
            WHERE m.minute <= tenure.now() - coalesce((p_request ->> 'metric_seconds')::double precision, 2592000) * interval '1 second'),
        'memories', (SELECT count(*) FROM tenure.memory AS m WHERE m.expires_at <= tenure.now()),
        'more', false)
$$;

-- newest: the clock, the newest job, event and move, for `inspect`.
CREATE OR REPLACE FUNCTION tenure.newest() RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT json_build_object(
        'at', tenure.to_us(tenure.now()),
        'newest_created_at', (SELECT tenure.to_us(j.created_at) FROM tenure.job AS j ORDER BY j.id DESC LIMIT 1),
        'last_event', coalesce((SELECT max(e.seq) FROM tenure.event AS e), 0),
        'last_move', (SELECT json_build_object('role', m.role, 'other', m.other, 'phase', m.phase)
            FROM tenure.move AS m ORDER BY m.started_at DESC, m.id DESC LIMIT 1))
$$;

-- prune_lag: {"scan"} → since how many seconds the oldest of the jobs that ended first should have lost its payload; 0 if none should.
CREATE OR REPLACE FUNCTION tenure.prune_lag(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT to_json(coalesce(max(extract(epoch FROM tenure.now() - e.finished_at) - q.retain_seconds), 0))
    FROM (
        SELECT j.id, j.queue, j.finished_at
        FROM tenure.job AS j
        WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL
        ORDER BY j.finished_at
        LIMIT (p_request ->> 'scan')::bigint
    ) AS e
    JOIN tenure.queue AS q ON q.name = e.queue
    WHERE e.finished_at <= tenure.now() - q.retain_seconds * interval '1 second'
        AND NOT EXISTS (SELECT 1 FROM tenure.dead_letter AS d WHERE d.job_id = e.id AND d.triage <> 'closed')
$$;

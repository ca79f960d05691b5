-- Upkeep: retention, the tally, counted minutes, rows of workers that are gone.

-- prune: retention, in bounded batches. {"limit", "older_than_seconds", "delete_after_seconds", "worker_seconds", "metric_seconds"} →
-- {"cleaned", "deleted", "events", "workers", "metrics", "memories", "more"}.
CREATE OR REPLACE FUNCTION tenure.prune(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_limit bigint := tenure.page_limit(p_request);
    v_worker_seconds double precision := coalesce((p_request ->> 'worker_seconds')::double precision, 86400);
    v_delete_after double precision := (p_request ->> 'delete_after_seconds')::double precision;
    v_cleaned bigint;
    v_deleted bigint[] := '{0,0}';
    v_workers integer;
    v_metrics bigint;
    v_memories bigint;
    v_chunks bigint;
    v_memos bigint;
BEGIN
    -- First of all, because it alone may wait for job rows.
    v_workers := cardinality(tenure.remove_silent_workers(v_worker_seconds, v_limit, v_now));
    v_cleaned := tenure.clean_jobs((p_request ->> 'older_than_seconds')::double precision, v_limit, v_now);
    IF v_delete_after IS NOT NULL THEN
        v_deleted := tenure.delete_jobs(v_delete_after, v_limit, v_now);
    END IF;
    DELETE FROM tenure.signal AS s
    WHERE s.id IN (SELECT e.id FROM tenure.signal AS e WHERE e.expires_at <= v_now ORDER BY e.expires_at LIMIT v_limit FOR UPDATE SKIP LOCKED);
    v_metrics := tenure.drop_metrics(coalesce((p_request ->> 'metric_seconds')::double precision, 2592000), v_limit, v_now);
    v_memories := tenure.expire_memories(v_limit, v_now);
    v_chunks := tenure.drop_streams(v_limit);
    v_memos := tenure.prune_memos(v_limit, v_now);
    PERFORM tenure.prune_limiters(v_now);
    IF EXISTS (SELECT 1 FROM tenure.profile) THEN
        PERFORM tenure.tally_up(v_now);
    END IF;
    RETURN json_build_object(
        'cleaned', v_cleaned, 'deleted', v_deleted[1], 'events', v_deleted[2], 'workers', v_workers,
        'metrics', v_metrics, 'memories', v_memories,
        'more', v_cleaned >= v_limit OR v_deleted[1] >= v_limit OR v_workers >= v_limit OR v_metrics >= v_limit OR v_memories >= v_limit
            OR v_chunks >= v_limit OR v_memos >= v_limit
    );
END
$$;

-- clean_jobs: take payload, result and errors from jobs that ended longer ago than their queue retains. The row stays, and so does
-- its key. A job with a dead letter that is not closed keeps everything: it may still be needed. What is locked is left for
-- the next time, so a revive and a prune never wait for each other.
CREATE OR REPLACE FUNCTION tenure.clean_jobs(p_older_than double precision, p_limit bigint, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_ids uuid[];
BEGIN
    v_ids := ARRAY(
        SELECT j.id
        FROM tenure.job AS j
        JOIN tenure.queue AS q ON q.name = j.queue
        WHERE j.finished_at IS NOT NULL
            AND j.cleaned_at IS NULL
            AND j.finished_at <= p_now - coalesce(p_older_than, q.retain_seconds) * interval '1 second'
            -- The same for the queue that retains least, which ends the walk of the index there.
            AND j.finished_at <= p_now - coalesce(p_older_than, (SELECT min(r.retain_seconds) FROM tenure.queue AS r)) * interval '1 second'
            AND NOT EXISTS (SELECT 1 FROM tenure.dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
            -- What a job that has not ended may still read of its children stays.
            AND (j.group_id IS NULL OR NOT EXISTS (
                SELECT 1 FROM tenure.job_group AS g JOIN tenure.job AS p ON p.id = g.parent_id WHERE g.id = j.group_id AND p.finished_at IS NULL))
        ORDER BY j.finished_at
        LIMIT p_limit
        FOR UPDATE OF j SKIP LOCKED
    );
    UPDATE tenure.job AS j
    SET payload = NULL,
        result = NULL,
        result_summary = NULL,
        progress = NULL,
        last_error = NULL,
        cleaned_at = p_now,
        updated_at = p_now
    WHERE j.id = ANY (v_ids);
    UPDATE tenure.attempt AS a SET error = NULL WHERE a.job_id = ANY (v_ids) AND a.error IS NOT NULL;
    UPDATE tenure.step AS s SET value = NULL, error = NULL WHERE s.job_id = ANY (v_ids) AND num_nonnulls(s.value, s.error) > 0;
    UPDATE tenure.stream AS s SET is_gone = true WHERE s.job_id = ANY (v_ids) AND NOT s.is_gone;
    UPDATE tenure.approval AS a SET args = NULL, text = '' WHERE a.job_id = ANY (v_ids) AND a.args IS NOT NULL;
    UPDATE tenure.vote AS v SET note = NULL FROM tenure.approval AS a
    WHERE a.job_id = ANY (v_ids) AND v.approval_id = a.id AND v.note IS NOT NULL;
    DELETE FROM tenure.spend AS s WHERE s.job_id = ANY (v_ids) AND s.state IN ('done', 'broken');
    PERFORM tenure.tally_cleaned(v_ids, false);
    RETURN cardinality(v_ids);
END
$$;

-- delete_jobs: remove cleaned rows that ended longer ago than that, with their attempts, effects and events. Answers {jobs, events}.
CREATE OR REPLACE FUNCTION tenure.delete_jobs(p_after double precision, p_limit bigint, p_now timestamptz) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_ids uuid[];
    v_events bigint;
BEGIN
    v_ids := ARRAY(
        SELECT j.id
        FROM tenure.job AS j
        WHERE j.cleaned_at IS NOT NULL
            AND j.finished_at <= p_now - p_after * interval '1 second'
            AND NOT EXISTS (SELECT 1 FROM tenure.dead_letter AS d WHERE d.job_id = j.id AND d.triage <> 'closed')
            -- What a job that has not ended may still read of its children stays.
            AND (j.group_id IS NULL OR NOT EXISTS (
                SELECT 1 FROM tenure.job_group AS g JOIN tenure.job AS p ON p.id = g.parent_id WHERE g.id = j.group_id AND p.finished_at IS NULL))
        ORDER BY j.finished_at
        LIMIT p_limit
        FOR UPDATE OF j SKIP LOCKED
    );
    PERFORM tenure.tally_cleaned(v_ids, true);
    DELETE FROM tenure.job AS j WHERE j.id = ANY (v_ids);
    DELETE FROM tenure.attempt AS a WHERE a.job_id = ANY (v_ids);
    DELETE FROM tenure.effect AS f WHERE f.job_id = ANY (v_ids);
    DELETE FROM tenure.step AS s WHERE s.job_id = ANY (v_ids);
    DELETE FROM tenure.vote AS v USING tenure.approval AS a WHERE a.job_id = ANY (v_ids) AND v.approval_id = a.id;
    DELETE FROM tenure.approval AS a WHERE a.job_id = ANY (v_ids);
    DELETE FROM tenure.spend AS s WHERE s.job_id = ANY (v_ids);
    DELETE FROM tenure.group_member AS m USING tenure.job_group AS g WHERE g.parent_id = ANY (v_ids) AND m.group_id = g.id;
    DELETE FROM tenure.job_group AS g WHERE g.parent_id = ANY (v_ids);
    DELETE FROM tenure.event AS e WHERE e.job_id = ANY (v_ids);
    GET DIAGNOSTICS v_events = ROW_COUNT;
    RETURN ARRAY[cardinality(v_ids)::bigint, v_events];
END
$$;

-- refuse_foreign_workers: a login removes its own workers, and those that a profile's worker_timeout_seconds calls dead; operators remove any.
-- Jobs that another login holds under such a name stay with that login, even if this one registered the name.
CREATE OR REPLACE FUNCTION tenure.refuse_foreign_workers(p_ids text[], p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_foreign text;
BEGIN
    IF tenure.may('cancel') THEN
        RETURN;
    END IF;
    WITH dead AS (
        SELECT w.id, w.login
        FROM tenure.worker AS w
        WHERE w.id = ANY (p_ids) AND w.last_seen_at <= p_now - interval '1 second' * (
            SELECT min((p.settings ->> 'worker_timeout_seconds')::double precision)
            FROM tenure.queue AS q
            JOIN tenure.profile AS p ON p.name = q.profile
            WHERE q.name = ANY (w.queues)
        )
    )
    SELECT f.id INTO v_foreign
    FROM (
        SELECT w.id, w.login FROM tenure.worker AS w WHERE w.id = ANY (p_ids)
        UNION ALL
        SELECT j.lease_owner, j.lease_login FROM tenure.job AS j WHERE j.state IN ('leased', 'running') AND j.lease_owner = ANY (p_ids)
    ) AS f(id, login)
    WHERE f.login IS DISTINCT FROM tenure.login()
        AND NOT EXISTS (SELECT 1 FROM dead AS d WHERE d.id = f.id AND d.login IS NOT DISTINCT FROM f.login)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'Worker % belongs to another login. Nothing was changed. An operator may remove it; its leases run out by themselves.',
            quote_literal(v_foreign) USING ERRCODE = 'TN010';
    END IF;
END
$$;

-- remove_workers: {"ids", "unseen_seconds"} → who was removed. What the named ones hold is taken back first.
-- For callers that are no operators a worker is silent after five minutes, or what a profile says, at the earliest: a shorter time would take
-- jobs from live workers of other logins, and open the gates of those that are drained.
CREATE OR REPLACE FUNCTION tenure.remove_workers(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_ids text[] := coalesce(tenure.text_list(p_request -> 'ids'), '{}');
    v_unseen double precision := (p_request ->> 'unseen_seconds')::double precision;
    v_removed text[];
BEGIN
    PERFORM tenure.refuse_foreign_workers(v_ids, v_now);
    PERFORM tenure.take_back_these(
        ARRAY(SELECT j.id FROM tenure.job AS j WHERE j.state IN ('leased', 'running') AND j.lease_owner = ANY (v_ids)), 'infinity', v_now);
    WITH gone AS (
        DELETE FROM tenure.worker AS w WHERE w.id = ANY (v_ids) RETURNING w.id
    )
    SELECT coalesce(array_agg(gone.id ORDER BY gone.id), '{}') INTO v_removed FROM gone;
    DELETE FROM tenure.gate AS g WHERE g.name IN (SELECT 'worker:' || r.id FROM unnest(v_removed) AS r(id));
    IF v_unseen IS NOT NULL THEN
        IF NOT tenure.may('cancel') THEN
            v_unseen := greatest(v_unseen, 300, (SELECT max((p.settings ->> 'worker_timeout_seconds')::double precision) FROM tenure.profile AS p));
        END IF;
        v_removed := v_removed || tenure.remove_silent_workers(v_unseen, NULL, v_now);
    END IF;
    RETURN array_to_json(v_removed);
END
$$;

-- remove_silent_workers: the rows of workers that were not seen for so long and hold nothing.
--
-- Silence takes no lease that has not run out, except in a profile whose settings say so (worker_timeout_seconds, specification 003;
-- the shorter of the two times counts). For a while after the server started no worker counts as silent, nor while a heartbeat gate that
-- concerns it is closed: it could not speak.
CREATE OR REPLACE FUNCTION tenure.remove_silent_workers(p_unseen double precision, p_limit bigint, p_now timestamptz) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_cutoff timestamptz := tenure.expiry_cutoff(p_now);
    v_timeout record;
    v_removed text[];
BEGIN
    FOR v_timeout IN
        SELECT p.name AS profile, v_cutoff - least(p_unseen, (p.settings ->> 'worker_timeout_seconds')::double precision) * interval '1 second' AS before
        FROM tenure.profile AS p
        WHERE p.settings ->> 'worker_timeout_seconds' IS NOT NULL
    LOOP
        PERFORM tenure.take_back_these(
            ARRAY(
                SELECT j.id
                FROM tenure.job AS j
                JOIN tenure.worker AS w ON w.id = j.lease_owner AND w.last_seen_at <= v_timeout.before
                WHERE j.state IN ('leased', 'running') AND j.profile = v_timeout.profile AND NOT tenure.is_muted(w.queues)
            ),
            v_timeout.before, p_now);
    END LOOP;
    WITH silent AS (
        SELECT w.id
        FROM tenure.worker AS w
        WHERE NOT EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.lease_owner = w.id AND j.state IN ('leased', 'running'))
            AND NOT tenure.is_muted(w.queues)
            AND w.last_seen_at <= v_cutoff - interval '1 second' * least(p_unseen, (
                SELECT min((p.settings ->> 'worker_timeout_seconds')::double precision)
                FROM tenure.queue AS q
                JOIN tenure.profile AS p ON p.name = q.profile
                WHERE q.name = ANY (w.queues)
            ))
        ORDER BY w.last_seen_at
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM tenure.worker AS w USING silent AS s WHERE w.id = s.id RETURNING w.id
    )
    SELECT coalesce(array_agg(gone.id ORDER BY gone.id), '{}') INTO v_removed FROM gone;
    DELETE FROM tenure.gate AS g WHERE g.name IN (SELECT 'worker:' || r.id FROM unnest(v_removed) AS r(id));
    RETURN v_removed;
END
$$;

-- is_muted: whether a heartbeat gate is closed, the global one or that of a profile whose queues these are.
CREATE OR REPLACE FUNCTION tenure.is_muted(p_queues text[]) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT 1
        FROM tenure.gate AS g
        WHERE NOT g.is_open AND (g.name = 'heartbeat' OR g.name IN (
            SELECT q.profile || '.heartbeat' FROM tenure.queue AS q WHERE q.name = ANY (p_queues)))
    )
$$;

-- take_back_these: end the attempts of these jobs, in the order of their ids, as the locks ask for.
-- A worker that was seen after p_before, because it has spoken meanwhile, keeps its jobs.
CREATE OR REPLACE FUNCTION tenure.take_back_these(p_jobs uuid[], p_before timestamptz, p_now timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_jobs tenure.job[];
    v_job tenure.job;
    v_is_beside boolean;
    v_beside text[] := '{}';
BEGIN
    -- Read before the first is written: a cursor would skip the rows that mark_beside writes ahead of it.
    v_jobs := ARRAY(
        SELECT j
        FROM tenure.job AS j
        WHERE j.id = ANY (p_jobs) AND j.state IN ('leased', 'running')
        ORDER BY j.id
        FOR UPDATE
    );
    FOREACH v_job IN ARRAY v_jobs LOOP
        -- Asked after the row was locked, in a statement of its own: the one above may have waited, and knows only the time before.
        CONTINUE WHEN EXISTS (SELECT 1 FROM tenure.worker AS w WHERE w.id = v_job.lease_owner AND w.last_seen_at > p_before);
        v_is_beside := tenure.mark_beside(v_job, true, p_now) OR v_job.is_beside OR v_job.lease_owner = ANY (v_beside);
        IF v_is_beside THEN
            v_beside := v_beside || v_job.lease_owner;
        END IF;
        PERFORM tenure.take_back(v_job, v_is_beside, true, p_now);
    END LOOP;
END
$$;

-- tally_up: count what ended since the last time, up to a minute ago. Bounded by what ended; repeated at will; skipped where another session
-- else is at it. Answers up to where everything is counted.
--
-- Invariant: every good end and every cleaned one up to counted_until is in the tally once. An end may be committed after others that
-- carry a later time, so a moment is counted only when every transaction is over that had begun to write a minute after it.
CREATE OR REPLACE FUNCTION tenure.tally_up(p_now timestamptz) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_mark tenure.tally_mark;
BEGIN
    SELECT * INTO v_mark FROM tenure.tally_mark AS m FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF v_mark.next_until IS NOT NULL AND pg_snapshot_xmin(pg_current_snapshot()) >= v_mark.next_xid THEN
        INSERT INTO tenure.tally AS t (profile, kind, state, is_cleaned, day, jobs, attempts, attempts_max, oldest_at, newest_at)
        SELECT
            e.profile, e.kind, e.state, e.is_cleaned, (e.finished_at AT TIME ZONE 'UTC')::date,
            count(*), sum(e.attempt), max(e.attempt), min(e.created_at), max(e.created_at)
        FROM (
            SELECT j.profile, j.kind, j.state, false AS is_cleaned, j.finished_at, j.attempt, j.created_at
            FROM tenure.job AS j
            WHERE j.finished_at IS NOT NULL AND j.cleaned_at IS NULL AND j.state = 'succeeded'
                AND j.finished_at > v_mark.counted_until AND j.finished_at <= v_mark.next_until
            UNION ALL
            SELECT j.profile, j.kind, j.state, true, j.finished_at, j.attempt, j.created_at
            FROM tenure.job AS j
            WHERE j.cleaned_at IS NOT NULL
                AND j.finished_at > v_mark.counted_until AND j.finished_at <= v_mark.next_until
        ) AS e
        GROUP BY 1, 2, 3, 4, 5
        ON CONFLICT (profile, kind, state, is_cleaned, day) DO UPDATE
        SET jobs = t.jobs + excluded.jobs,
            attempts = t.attempts + excluded.attempts,
            attempts_max = greatest(t.attempts_max, excluded.attempts_max),
            oldest_at = least(t.oldest_at, excluded.oldest_at),
            newest_at = greatest(t.newest_at, excluded.newest_at);
        v_mark.counted_until := v_mark.next_until;
        v_mark.next_until := NULL;
        UPDATE tenure.tally_mark AS m SET counted_until = v_mark.counted_until, next_until = NULL, next_xid = NULL;
    END IF;
    IF v_mark.next_until IS NULL AND p_now - interval '1 minute' > v_mark.counted_until THEN
        UPDATE tenure.tally_mark AS m
        SET next_until = p_now - interval '1 minute',
            next_xid = pg_snapshot_xmax(pg_current_snapshot());
    END IF;
    RETURN v_mark.counted_until;
END
$$;

-- tally_cleaned: these jobs have just lost their payloads, or with p_gone are about to be deleted; what the tally has of them moves along.
-- The mark is held until the commit, so that no tally_up sees them half moved.
CREATE OR REPLACE FUNCTION tenure.tally_cleaned(p_ids uuid[], p_gone boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_until timestamptz;
    v_moved record;
BEGIN
    SELECT m.counted_until INTO v_until FROM tenure.tally_mark AS m FOR SHARE;
    IF v_until = '-infinity' THEN
        RETURN;
    END IF;
    FOR v_moved IN
        SELECT
            j.profile, j.kind, j.state, (j.finished_at AT TIME ZONE 'UTC')::date AS day,
            count(*) AS jobs, sum(j.attempt) AS attempts, max(j.attempt) AS attempts_max,
            min(j.created_at) AS oldest_at, max(j.created_at) AS newest_at
        FROM tenure.job AS j
        WHERE j.id = ANY (p_ids) AND j.finished_at <= v_until
        GROUP BY 1, 2, 3, 4
        ORDER BY 1, 2, 3, 4
    LOOP
        UPDATE tenure.tally AS t
        SET jobs = t.jobs - v_moved.jobs,
            attempts = t.attempts - v_moved.attempts
        WHERE t.profile = v_moved.profile AND t.kind = v_moved.kind AND t.state = v_moved.state
            AND t.is_cleaned = p_gone AND t.day = v_moved.day;
        IF NOT p_gone THEN
            INSERT INTO tenure.tally AS t (profile, kind, state, is_cleaned, day, jobs, attempts, attempts_max, oldest_at, newest_at)
            VALUES (
                v_moved.profile, v_moved.kind, v_moved.state, true, v_moved.day,
                v_moved.jobs, v_moved.attempts, v_moved.attempts_max, v_moved.oldest_at, v_moved.newest_at
            )
            ON CONFLICT (profile, kind, state, is_cleaned, day) DO UPDATE
            SET jobs = t.jobs + excluded.jobs,
                attempts = t.attempts + excluded.attempts,
                attempts_max = greatest(t.attempts_max, excluded.attempts_max),
                oldest_at = least(t.oldest_at, excluded.oldest_at),
                newest_at = greatest(t.newest_at, excluded.newest_at);
        END IF;
    END LOOP;
    DELETE FROM tenure.tally AS t WHERE t.jobs <= 0;
END
$$;

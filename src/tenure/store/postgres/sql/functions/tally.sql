-- tally_up: count what ended since the last time, up to a minute ago. Bounded by what ended; repeated at will; skipped where somebody
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

-- settle_outcomes: the settling half of an exchange. Answers [[id, token, state, run_at_us], …] for whatever did not end as a plain
-- success; state null says that the lease was lost and nothing was changed. Null: everything was a plain success.
--
-- Takes {"ids": "{id,…}", "tokens": "{token,…}", "done": [{"i": id, "t": token, "r": result, "s": summary, "a": artifacts}],
-- "rest": [{"i", "t", "o": move, …}]}: plain completions, which go in one statement, and everything else, one by one. Completions that
-- leave nothing behind may come as two SQL arrays in text, which are far quicker to read than so many objects.
-- Invariant: only the grant that holds the lease may write. `token` rises in claim and nowhere else, and a lease that ran out counts
-- no more, so a late worker matches no row.
-- Rows are found and locked one by one, in order of id. `BETWEEN g.i AND g.i` says «equal» in words that only a lookup by key can serve:
-- for an equality the planner may turn the join around and read the whole table, if it believes that nothing is in it. A row that somebody
-- else (a heartbeat) writes while we wait for its lock is looked at again as it is then, so it counts if it still is ours.
CREATE OR REPLACE FUNCTION tenure.settle_outcomes(p_outcomes json, p_now timestamptz) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_ids uuid[];
    v_tokens bigint[];
    v_done json;
    v_rest json;
    v_cutoff timestamptz := tenure.expiry_cutoff(p_now);
    v_answers json[] := '{}';
    v_given integer;
    v_settled integer;
    v_odd uuid[];
    v_told uuid[];
    v_events boolean;
BEGIN
    SELECT o.ids, o.tokens, o.done, o.rest, EXISTS (SELECT 1 FROM tenure.queue AS q WHERE q.events)
    INTO v_ids, v_tokens, v_done, v_rest, v_events
    FROM json_to_record(p_outcomes) AS o(ids uuid[], tokens bigint[], done json, rest json);
    -- One plain completion, the common end of a worker with little to do, is not gathered and counted. Whatever else it turns out to be
    -- (lost, repeated, asked to stop) is left to the statements below.
    IF cardinality(v_ids) = 1 AND v_done IS NULL AND v_rest IS NULL AND NOT v_events THEN
        UPDATE tenure.job AS j
        SET state = 'succeeded',
            result = NULL,
            result_summary = NULL,
            lease_owner = NULL,
            lease_until = NULL,
            started_at = coalesce(j.started_at, j.claimed_at),
            finished_at = p_now,
            dedup_slot = CASE WHEN left(j.dedup_slot, 1) = 'a' THEN NULL ELSE j.dedup_slot END,
            updated_at = p_now
        WHERE j.id = v_ids[1] AND j.token = v_tokens[1] AND j.lease_until > v_cutoff AND j.cancel_requested_at IS NULL;
        IF FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    IF v_rest IS NOT NULL THEN
        PERFORM 1 FROM tenure.job AS j
        WHERE j.id IN (
            SELECT unnest(v_ids)
            UNION ALL SELECT g.i FROM json_to_recordset(coalesce(v_done, '[]')) AS g(i uuid)
            UNION ALL SELECT g.i FROM json_to_recordset(v_rest) AS g(i uuid)
        )
        ORDER BY j.id FOR UPDATE;
    END IF;
    IF v_done IS NOT NULL OR v_ids IS NOT NULL THEN
        WITH given AS MATERIALIZED (
            SELECT unnest(v_ids) AS i, unnest(v_tokens) AS t, NULL::json AS r, NULL AS s, NULL AS a
            UNION ALL
            SELECT g.i, g.t, g.r, g.s, g.a FROM json_to_recordset(coalesce(v_done, '[]')) AS g(i uuid, t bigint, r json, s text, a text)
            ORDER BY 1
        ), ended AS (
            UPDATE tenure.job AS j
            SET state = CASE WHEN j.cancel_requested_at IS NULL THEN 'succeeded' ELSE 'cancelled' END,
                result = CASE WHEN j.cancel_requested_at IS NULL THEN g.r END,
                result_summary = CASE WHEN j.cancel_requested_at IS NULL THEN g.s END,
                artifacts_path = coalesce(g.a, j.artifacts_path),
                lease_owner = NULL,
                lease_until = NULL,
                started_at = coalesce(j.started_at, j.claimed_at),
                finished_at = p_now,
                dedup_slot = CASE WHEN left(j.dedup_slot, 1) = 'a' THEN NULL ELSE j.dedup_slot END,
                updated_at = p_now
            FROM given AS g
            WHERE j.id BETWEEN g.i AND g.i AND j.token = g.t AND j.lease_until > v_cutoff
            RETURNING j.id, j.cancel_requested_at
        )
        SELECT (SELECT count(*) FROM given), count(*),
            array_agg(e.id) FILTER (WHERE e.cancel_requested_at IS NOT NULL), array_agg(e.id) FILTER (WHERE v_events AND e.cancel_requested_at IS NULL)
        INTO v_given, v_settled, v_odd, v_told
        FROM ended AS e;
        IF v_told IS NOT NULL THEN
            PERFORM tenure.tell('completed', v_told, p_now);
        END IF;
        IF v_odd IS NOT NULL THEN
            v_answers := v_answers || tenure.cancelled_instead(v_odd, p_now);
            PERFORM tenure.tell('cancelled', v_odd, p_now);
        END IF;
        IF v_settled < v_given THEN
            v_answers := v_answers || tenure.refused_completions(v_ids, v_tokens, v_done);
        END IF;
    END IF;
    IF v_rest IS NOT NULL THEN
        v_answers := v_answers || tenure.settle_rest(v_rest, p_now, v_cutoff);
    END IF;
    IF cardinality(v_answers) = 0 THEN
        RETURN NULL;
    END IF;
    RETURN array_to_json(v_answers);
END
$$;

-- cancelled_instead: completions of jobs that were asked to stop end as cancelled; their attempt is written down.
CREATE OR REPLACE FUNCTION tenure.cancelled_instead(p_ids uuid[], p_now timestamptz) RETURNS json[]
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO tenure.attempt (job_id, token, attempt, claimed_at, ended_at, outcome, failure_class, error)
    SELECT j.id, j.token, j.attempt, j.claimed_at, p_now, 'cancelled', 'cancelled', 'Completed after a cancel was requested.'
    FROM unnest(p_ids) AS c(id) JOIN tenure.job AS j ON j.id = c.id
    ON CONFLICT DO NOTHING;
    UPDATE tenure.job AS j SET failure_class = 'cancelled' WHERE j.id = ANY (p_ids);
    RETURN ARRAY(SELECT json_build_array(j.id, j.token, 'cancelled', NULL) FROM tenure.job AS j WHERE j.id = ANY (p_ids));
END
$$;

-- refused_completions: of these completions, those that did not count: lost. One that was taken in by an earlier try of the same
-- request (succeeded under that very token) is no refusal.
CREATE OR REPLACE FUNCTION tenure.refused_completions(p_ids uuid[], p_tokens bigint[], p_done json) RETURNS json[]
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(array_agg(json_build_array(g.i, g.t, CASE WHEN j.state = 'cancelled' AND a.outcome = 'cancelled' THEN 'cancelled' END, NULL)), '{}')
    FROM (
        SELECT unnest(p_ids) AS i, unnest(p_tokens) AS t
        UNION ALL SELECT d.i, d.t FROM json_to_recordset(coalesce(p_done, '[]')) AS d(i uuid, t bigint)
    ) AS g
    LEFT JOIN tenure.job AS j ON j.id = g.i AND j.token = g.t
    LEFT JOIN tenure.attempt AS a ON a.job_id = g.i AND a.token = g.t
    WHERE j.state IS DISTINCT FROM 'succeeded'
$$;

-- claim_queue: grant up to p_limit due jobs of one queue. Answers the grants as JSON lines, and how many there are.
--
-- Invariants: a row is granted by whoever locks it first, others skip it; token rises here and nowhere else; the attempt is
-- counted now, so a job that kills its worker spends its budget all the same.
-- Rows are found by (queue, rank, run_at, id), in that order, on an index that holds nothing but claimable rows.
-- With a mark (rank, run_at, id) the look is at that rank only and starts behind it: entries of that rank which somebody's long
-- transaction keeps alive are then not walked again and again. Without one it is a full look.
CREATE OR REPLACE FUNCTION tenure.claim_queue(
    p_queue tenure.queue, p_worker text, p_limit integer, p_kinds text[], p_affinity text[], p_lease double precision,
    p_now timestamptz, p_mark_rank bigint, p_mark_run_at timestamptz, p_mark_id uuid,
    OUT grants json, OUT granted integer, OUT marks json
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_until timestamptz := p_now + coalesce(p_lease, p_queue.lease_seconds) * interval '1 second';
    v_state text := CASE WHEN p_queue.start_on_claim THEN 'running' ELSE 'leased' END;
    v_at tid[];
    v_ids uuid[];
BEGIN
    granted := 0;
    v_at := tenure.pick(p_queue, p_limit, p_kinds, p_affinity, p_mark_rank, p_mark_run_at, p_mark_id);
    IF v_at IS NULL THEN
        RETURN;
    END IF;
    WITH taken AS MATERIALIZED (
        UPDATE tenure.job AS j
        SET state = v_state,
            token = j.token + 1,
            attempt = j.attempt + 1,
            lease_owner = p_worker,
            lease_until = v_until,
            claimed_at = p_now,
            started_at = CASE WHEN v_state = 'running' THEN coalesce(j.started_at, p_now) ELSE j.started_at END,
            updated_at = p_now
        WHERE j.ctid = ANY (v_at)
        RETURNING
            j.rank, j.run_at, j.id,
            json_build_array(
                j.id, j.kind, j.token, j.attempt, j.max_attempts, j.payload::text, j.priority, j.crashes, j.rank,
                (date_part('epoch', j.run_at) * 1000000)::bigint,  -- only for order; exact until the year 2255, and far cheaper than to_us
                CASE WHEN NOT (
                    ROW(j.idempotency_key, j.affinity_key, j.concurrency_key, j.source_ref, j.target_ref, j.payload_ref, j.actor,
                        j.created_by_user_id, j.requested_by_user_id, j.tenant, j.workflow_id, j.parent_id, j.run_id, j.trace,
                        j.artifacts_path, j.progress, j.cancel_requested_at) IS NULL)
                THEN json_strip_nulls(json_build_object(
                    'key', j.idempotency_key, 'affinity_key', j.affinity_key, 'concurrency_key', j.concurrency_key,
                    'source_ref', j.source_ref, 'target_ref', j.target_ref, 'payload_ref', j.payload_ref, 'actor', j.actor,
                    'created_by_user_id', j.created_by_user_id, 'requested_by_user_id', j.requested_by_user_id,
                    'tenant', j.tenant, 'workflow_id', j.workflow_id, 'parent_id', j.parent_id, 'run_id', j.run_id,
                    'trace', j.trace, 'artifacts_path', j.artifacts_path, 'progress', j.progress))
                END
            ) AS line
    )
    SELECT
        json_agg(t.line ORDER BY t.rank, t.run_at, t.id),
        count(*),
        CASE WHEN p_limit >= 50 THEN (
            SELECT json_agg(json_build_array(m.rank, tenure.to_us(m.run_at), m.id))
            FROM (SELECT DISTINCT ON (l.rank) l.rank, l.run_at, l.id FROM taken AS l ORDER BY l.rank, l.run_at DESC, l.id DESC) AS m
        ) END
    INTO grants, granted, marks
    FROM taken AS t;
    IF p_queue.events THEN
        v_ids := ARRAY(SELECT (g.value ->> 0)::uuid FROM json_array_elements(grants) AS g);
        PERFORM tenure.tell('claimed', v_ids, p_now);
        IF p_queue.start_on_claim THEN
            PERFORM tenure.tell('started', v_ids, p_now);
        END IF;
    END IF;
END
$$;

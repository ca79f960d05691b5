-- enqueue_group: the jobs of one queue and kind, p_count of them, as enqueue takes them. A door of its own for the common case: the jobs
-- are then read once, and nothing around them. Answers null if all are new, else [[id, id of the holder], …] for those that are not.
-- p_is_plain promises that no job has a key, a time or anything rare: then the statement is short, and so is getting it ready.
CREATE OR REPLACE FUNCTION tenure.enqueue_group(
    p_queue text, p_kind text, p_count integer, p_jobs json, p_notify text DEFAULT NULL, p_is_plain boolean DEFAULT false
) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    RETURN tenure.put_group(tenure.open_queue(p_queue, 'enqueue'), p_kind, p_count, p_jobs, p_notify, p_is_plain);
END
$$;

-- put_group: enqueue_group behind the gates. The follow-ups of a completed job come straight here: a settle is never refused by a gate.
CREATE OR REPLACE FUNCTION tenure.put_group(
    p_queue tenure.queue, p_kind text, p_count integer, p_jobs json, p_notify text, p_is_plain boolean
) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    -- rank = step × priority + offset; with aging, a step of priority is worth some time, and the offset is the time.
    v_step bigint := CASE p_queue.priority_order WHEN 'high' THEN -1 ELSE 1 END
        * CASE WHEN p_queue.aging_seconds IS NULL THEN 1 ELSE (p_queue.aging_seconds * 1000000)::bigint END;
    v_offset bigint := CASE WHEN p_queue.aging_seconds IS NULL THEN 0 ELSE tenure.to_us(v_now) END;
    v_inserted integer;
    v_ids uuid[];
    v_any_due boolean;
BEGIN
    IF p_queue.forbidden_keys IS NOT NULL THEN
        PERFORM tenure.refuse_forbidden_keys(p_jobs, p_queue);
    END IF;
    IF p_queue.key_required THEN
        PERFORM tenure.refuse_missing_keys(p_jobs, p_queue);
    END IF;
    IF p_is_plain AND NOT p_queue.events THEN
        INSERT INTO tenure.job (
            id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile, payload, forbidden_keys
        )
        SELECT
            g.i, v_step * coalesce(g.r, p_queue.priority_default) + v_offset, v_now, v_now, v_now,
            coalesce(g.r, p_queue.priority_default), coalesce(g.m, p_queue.max_attempts), true,
            p_queue.name, p_kind, p_queue.profile, coalesce(g.p, 'null'), p_queue.forbidden_keys
        FROM json_to_recordset(p_jobs) AS g(i uuid, p json, r integer, m integer)
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS v_inserted = ROW_COUNT;
        IF v_inserted > 0 THEN
            PERFORM tenure.notify(p_queue, p_notify);
        END IF;
        RETURN NULL;  -- without keys only an id can be taken: by an earlier try of this very request
    END IF;

    SELECT i.ids, i.any_due INTO v_ids, v_any_due
    FROM tenure.insert_jobs(p_queue, p_kind, p_jobs, v_step, v_offset, v_now) AS i;
    IF p_queue.events AND v_ids IS NOT NULL THEN
        PERFORM tenure.tell('queued', v_ids, v_now);
    END IF;
    IF v_any_due THEN
        PERFORM tenure.notify(p_queue, p_notify);
    END IF;
    IF coalesce(cardinality(v_ids), 0) = p_count THEN
        RETURN NULL;
    END IF;
    RETURN tenure.find_duplicates(p_jobs, v_ids, p_queue, p_kind, v_now, p_notify);
END
$$;

-- insert_jobs: the rows of jobs that may have keys, times and rare columns. Slots are taken in one order, so that two batches with the same
-- keys cannot wait for each other in a circle. Answers the ids that are new.
CREATE OR REPLACE FUNCTION tenure.insert_jobs(
    p_queue tenure.queue, p_kind text, p_jobs json, p_step bigint, p_offset bigint, p_now timestamptz, OUT ids uuid[], OUT any_due boolean
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_prefix text := tenure.slot_of(p_queue.key_scope, p_queue.key_space, p_queue.profile, p_kind, '');
BEGIN
    WITH created AS (
        INSERT INTO tenure.job (
            id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile,
            payload, payload_hash, idempotency_key, dedup_slot, forbidden_keys,
            affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor, created_by_user_id,
            requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, backoff, artifacts_path
        )
        SELECT
            g.i, p_step * g.priority + p_offset, g.run_at, p_now, p_now, g.priority, coalesce(g.m, p_queue.max_attempts),
            g.run_at <= p_now, p_queue.name, p_kind, p_queue.profile,
            g.payload, CASE WHEN g.k IS NOT NULL THEN tenure.payload_hash(g.payload) END, g.k, v_prefix || g.k, p_queue.forbidden_keys,
            g.x ->> 'affinity_key', g.x ->> 'concurrency_key', g.x ->> 'source_ref', g.x ->> 'target_ref', g.x ->> 'payload_ref',
            g.x ->> 'actor', (g.x ->> 'created_by_user_id')::uuid, (g.x ->> 'requested_by_user_id')::uuid, g.x ->> 'tenant',
            (g.x ->> 'workflow_id')::uuid, (g.x ->> 'parent_id')::uuid, (g.x ->> 'run_id')::uuid, g.x ->> 'trace',
            g.x -> 'backoff', g.x ->> 'artifacts_path'
        FROM (
            SELECT r.i, r.k, r.m, r.x, coalesce(r.p, 'null') AS payload, coalesce(r.r, p_queue.priority_default) AS priority,
                CASE
                    WHEN r.d IS NOT NULL THEN p_now + r.d * interval '1 second'
                    WHEN r.a IS NOT NULL THEN tenure.from_us(r.a)
                    ELSE p_now
                END AS run_at
            FROM json_to_recordset(p_jobs) AS r(i uuid, p json, r integer, k text, m integer, a bigint, d double precision, x json)
            OFFSET 0
        ) AS g
        ORDER BY g.k, g.i
        ON CONFLICT DO NOTHING
        RETURNING id, is_due
    )
    SELECT array_agg(c.id), bool_or(c.is_due) INTO ids, any_due FROM created AS c;
END
$$;

-- enqueue_group: the jobs of one queue and kind, p_count of them, as enqueue takes them. A door of its own for the common case: the jobs
-- are then read once, and nothing around them. Answers null if all are new, else [[id, id of the holder], …] for those that are not.
CREATE OR REPLACE FUNCTION tenure.enqueue_group(p_queue text, p_kind text, p_count integer, p_jobs json, p_notify text DEFAULT NULL) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_queue tenure.queue;
    v_inserted uuid[];
    v_any_due boolean;
BEGIN
    v_queue := tenure.open_queue(p_queue, 'enqueue');
    IF v_queue.forbidden_keys IS NOT NULL THEN
        PERFORM tenure.refuse_forbidden_keys(p_jobs, v_queue);
    END IF;
    IF v_queue.key_required THEN
        PERFORM tenure.refuse_missing_keys(p_jobs, v_queue);
    END IF;

    WITH created AS (
        INSERT INTO tenure.job (
            id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile,
            payload, payload_hash, idempotency_key, dedup_slot, forbidden_keys,
            affinity_key, concurrency_key, source_ref, target_ref, payload_ref, actor, created_by_user_id,
            requested_by_user_id, tenant, workflow_id, parent_id, run_id, trace, backoff, artifacts_path
        )
        SELECT
            g.i,
            tenure.rank_of(coalesce(g.r, v_queue.priority_default), v_queue.priority_order, v_queue.aging_seconds, v_now),
            due.run_at, v_now, v_now,
            coalesce(g.r, v_queue.priority_default),
            coalesce(g.m, v_queue.max_attempts),
            due.run_at <= v_now,
            v_queue.name, p_kind, v_queue.profile,
            coalesce(g.p, 'null'),
            CASE WHEN g.k IS NOT NULL THEN tenure.payload_hash(coalesce(g.p, 'null')) END,
            g.k,
            CASE WHEN g.k IS NOT NULL THEN tenure.slot_of(v_queue.key_scope, v_queue.key_space, v_queue.profile, p_kind, g.k) END,
            v_queue.forbidden_keys,
            g.x ->> 'affinity_key', g.x ->> 'concurrency_key', g.x ->> 'source_ref', g.x ->> 'target_ref', g.x ->> 'payload_ref',
            g.x ->> 'actor', (g.x ->> 'created_by_user_id')::uuid, (g.x ->> 'requested_by_user_id')::uuid, g.x ->> 'tenant',
            (g.x ->> 'workflow_id')::uuid, (g.x ->> 'parent_id')::uuid, (g.x ->> 'run_id')::uuid, g.x ->> 'trace',
            g.x -> 'backoff', g.x ->> 'artifacts_path'
        FROM json_to_recordset(p_jobs) AS g(i uuid, p json, r integer, k text, m integer, a bigint, d double precision, x json)
        CROSS JOIN LATERAL (
            SELECT CASE
                WHEN g.d IS NOT NULL THEN v_now + g.d * interval '1 second'
                WHEN g.a IS NOT NULL THEN tenure.from_us(g.a)
                ELSE v_now
            END AS run_at
        ) AS due
        ORDER BY g.k, g.i
        ON CONFLICT DO NOTHING
        RETURNING id, is_due
    )
    SELECT array_agg(created.id), bool_or(created.is_due) INTO v_inserted, v_any_due FROM created;

    IF v_queue.events AND v_inserted IS NOT NULL THEN
        INSERT INTO tenure.event (at, kind, job_id, queue) SELECT v_now, 'queued', i.id, v_queue.name FROM unnest(v_inserted) AS i(id);
    END IF;
    IF v_any_due THEN
        PERFORM tenure.notify(v_queue, p_notify);
    END IF;
    IF coalesce(cardinality(v_inserted), 0) = p_count THEN
        RETURN NULL;
    END IF;
    RETURN tenure.find_duplicates(p_jobs, v_inserted, v_queue, p_kind, v_now, p_notify);
END
$$;

-- enqueue_one and enqueue_plain: jobs with nothing but a payload, and perhaps a priority and a number of attempts; null stands for what the
-- queue gives. The quick doors for the common case: no JSON around the JSON, so every payload is read once, and two short statements.
-- Both answer null: without keys only an id can be taken, and whoever has it is an earlier try of this very request.
-- What is out of the ordinary (a closed gate, an unknown queue, a policy that looks into the jobs) is left to enqueue_group.
-- Gates are looked at beside the queue and not in its WHERE, where a condition without a column of the row is a step of its own in the plan.
-- p_hands_over: if a worker has offered to take a job, this one may be granted to it; see hand_to_waiter. Only for a call that commits by
-- itself.

CREATE OR REPLACE FUNCTION tenure.enqueue_one(
    p_queue text, p_kind text, p_id uuid, p_payload json, p_priority integer DEFAULT NULL, p_max_attempts integer DEFAULT NULL,
    p_hands_over boolean DEFAULT false
) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_step bigint;
    v_priority integer;
    v_max_attempts integer;
    v_profile text;
    v_wakes boolean;
    v_is_closed boolean;
BEGIN
    SELECT CASE q.priority_order WHEN 'high' THEN -1 ELSE 1 END, coalesce(p_priority, q.priority_default),
        coalesce(p_max_attempts, q.max_attempts), q.profile, EXISTS (SELECT 1 FROM tenure.waiter AS w WHERE w.queue = p_queue),
        EXISTS (SELECT 1 FROM tenure.gate AS g WHERE NOT g.is_open)
    INTO v_step, v_priority, v_max_attempts, v_profile, v_wakes, v_is_closed
    FROM tenure.queue AS q
    WHERE q.name = p_queue
        AND q.forbidden_keys IS NULL AND q.aging_seconds IS NULL AND NOT q.key_required AND NOT q.events;
    IF v_is_closed IS NOT FALSE THEN  -- null where no row was found
        RETURN tenure.enqueue_group(p_queue, p_kind, 1, json_build_array(
            json_build_object('i', p_id, 'p', p_payload, 'r', p_priority, 'm', p_max_attempts)), NULL, true);
    END IF;
    IF v_wakes AND p_hands_over THEN
        IF tenure.hand_to_waiter(p_queue, p_kind, p_id, p_payload, v_step * v_priority, v_priority, v_max_attempts, v_profile, v_now) THEN
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO tenure.job (id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile, payload)
    VALUES (p_id, v_step * v_priority, v_now, v_now, v_now, v_priority, v_max_attempts, true, p_queue, p_kind, v_profile, p_payload)
    ON CONFLICT DO NOTHING;
    IF v_wakes AND FOUND THEN
        PERFORM pg_notify('tenure', p_queue);
    END IF;
    RETURN NULL;
END
$$;

-- Many of one queue and kind, as arrays of equal length; a null array is one of nulls.
-- ON CONFLICT has a price per row, so only a repeated request pays it.
CREATE OR REPLACE FUNCTION tenure.enqueue_plain(
    p_queue text, p_kind text, p_ids uuid[], p_payloads json[], p_priorities integer[] DEFAULT NULL, p_max_attempts integer[] DEFAULT NULL
) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_step bigint;
    v_priority integer;
    v_max_attempts integer;
    v_profile text;
    v_wakes boolean;
    v_is_closed boolean;
    v_any boolean;
BEGIN
    SELECT CASE q.priority_order WHEN 'high' THEN -1 ELSE 1 END, q.priority_default, q.max_attempts, q.profile,
        EXISTS (SELECT 1 FROM tenure.waiter AS w WHERE w.queue = p_queue), EXISTS (SELECT 1 FROM tenure.gate AS g WHERE NOT g.is_open)
    INTO v_step, v_priority, v_max_attempts, v_profile, v_wakes, v_is_closed
    FROM tenure.queue AS q
    WHERE q.name = p_queue
        AND q.forbidden_keys IS NULL AND q.aging_seconds IS NULL AND NOT q.key_required AND NOT q.events;
    IF v_is_closed IS NOT FALSE THEN  -- null where no row was found
        RETURN tenure.enqueue_group(p_queue, p_kind, cardinality(p_ids), (
            SELECT json_agg(json_build_object('i', g.id, 'p', g.payload, 'r', g.priority, 'm', g.max_attempts))
            FROM unnest(p_ids, p_payloads, p_priorities, p_max_attempts) AS g(id, payload, priority, max_attempts)
        ), NULL, true);
    END IF;
    BEGIN
        INSERT INTO tenure.job (id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile, payload)
        SELECT g.id, v_step * coalesce(g.priority, v_priority), v_now, v_now, v_now, coalesce(g.priority, v_priority),
            coalesce(g.max_attempts, v_max_attempts), true, p_queue, p_kind, v_profile, g.payload
        FROM (
            SELECT unnest(p_ids) AS id, unnest(p_payloads) AS payload,
                unnest(p_priorities) AS priority, unnest(p_max_attempts) AS max_attempts
        ) AS g;
        v_any := FOUND;
    EXCEPTION WHEN unique_violation THEN
        INSERT INTO tenure.job (id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile, payload)
        SELECT g.id, v_step * coalesce(g.priority, v_priority), v_now, v_now, v_now, coalesce(g.priority, v_priority),
            coalesce(g.max_attempts, v_max_attempts), true, p_queue, p_kind, v_profile, g.payload
        FROM unnest(p_ids, p_payloads, p_priorities, p_max_attempts) AS g(id, payload, priority, max_attempts)
        ON CONFLICT DO NOTHING;
        v_any := FOUND;
    END;
    IF v_any AND v_wakes THEN
        PERFORM pg_notify('tenure', p_queue);
    END IF;
    RETURN NULL;
END
$$;

-- find_duplicates: for the jobs of a group that were not inserted, who holds their key. Answers [id, holder] for each.
--
-- A holder whose window has passed gives its slot up, and one that ended meanwhile has none any more: then the insert is
-- tried again. A key taken by another payload is refused where the queue's policy says so.
CREATE OR REPLACE FUNCTION tenure.find_duplicates(
    p_jobs json, p_inserted uuid[], p_queue tenure.queue, p_kind text, p_now timestamptz, p_notify text
) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_found json[] := '{}';
    v_again json[] := '{}';
    v_more json;
    v_row record;
    v_slot text;
    v_holder record;
BEGIN
    FOR v_row IN
        SELECT g.i, g.k, g.p, e.value AS whole
        FROM json_array_elements(p_jobs) AS e
        CROSS JOIN LATERAL json_to_record(e.value) AS g(i uuid, k text, p json)
        WHERE NOT g.i = ANY (coalesce(p_inserted, '{}'))
        ORDER BY g.k, g.i
    LOOP
        CONTINUE WHEN EXISTS (SELECT 1 FROM tenure.job AS j WHERE j.id = v_row.i);
        v_slot := tenure.slot_of(p_queue.key_scope, p_queue.key_space, p_queue.profile, p_kind, v_row.k);
        SELECT j.id, j.payload_hash, j.created_at INTO v_holder FROM tenure.job AS j WHERE j.dedup_slot = v_slot;
        IF NOT FOUND THEN
            v_again := v_again || v_row.whole;
        ELSIF p_queue.key_scope = 'window' AND v_holder.created_at + p_queue.key_window_seconds * interval '1 second' <= p_now THEN
            UPDATE tenure.job AS j SET dedup_slot = NULL WHERE j.id = v_holder.id AND j.dedup_slot = v_slot;
            v_again := v_again || v_row.whole;
        ELSIF p_queue.key_conflict = 'error' AND v_holder.payload_hash IS DISTINCT FROM tenure.payload_hash(coalesce(v_row.p, 'null')) THEN
            RAISE EXCEPTION 'Key % of kind % is held by job % with a different payload. Nothing was enqueued. Use another key, or the same payload.',
                quote_literal(v_row.k), quote_literal(p_kind), v_holder.id USING ERRCODE = 'TN004',
                DETAIL = json_build_object('key', v_row.k, 'kind', p_kind, 'holder', v_holder.id)::text;
        ELSE
            v_found := v_found || json_build_array(v_row.i, v_holder.id);
        END IF;
    END LOOP;
    IF cardinality(v_again) > 0 THEN
        v_more := tenure.put_group(p_queue, p_kind, cardinality(v_again), array_to_json(v_again), p_notify, false);
        v_found := v_found || ARRAY(SELECT d.value FROM json_array_elements(coalesce(v_more, '[]')) AS d);
    END IF;
    RETURN CASE WHEN cardinality(v_found) > 0 THEN array_to_json(v_found) END;
END
$$;

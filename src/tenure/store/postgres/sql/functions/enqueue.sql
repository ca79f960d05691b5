-- enqueue: put a batch of jobs in state queued, in one transaction (the caller's, if it has one).
--
-- Takes {"groups": [{"queue", "kind", "jobs": [{"i": id, "p": payload, …}]}], "create": {name: policy}, "notify": "always"}.
-- Answers null if every job is new, else {"duplicates": [[id, id of the job that holds the key], …]}.
--
-- Invariants: the unique index on dedup_slot decides who holds a key, never a look beforehand; a job whose own id is already
-- there was enqueued by an earlier try of this very request and counts as created; slots are taken in one order, so that
-- two batches with the same keys cannot wait for each other in a circle.
CREATE OR REPLACE FUNCTION tenure.enqueue(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_group json;
    v_found json;
    v_duplicates json[] := '{}';
BEGIN
    IF p_request -> 'create' IS NOT NULL THEN
        PERFORM tenure.set_queues(json_build_object('policies', p_request -> 'create', 'actor', 'enqueue', 'only_new', true));
    END IF;
    FOR v_group IN SELECT g.value FROM json_array_elements(p_request -> 'groups') AS g LOOP
        v_found := tenure.enqueue_group(v_group ->> 'queue', v_group ->> 'kind', json_array_length(v_group -> 'jobs'), v_group -> 'jobs',
            p_request ->> 'notify');
        IF v_found IS NOT NULL THEN
            v_duplicates := v_duplicates || ARRAY(SELECT d.value FROM json_array_elements(v_found) AS d);
        END IF;
    END LOOP;
    IF cardinality(v_duplicates) = 0 THEN
        RETURN NULL;
    END IF;
    RETURN json_build_object('duplicates', array_to_json(v_duplicates));
END
$$;

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
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT pg_catalog.row_to_json(shown)
    FROM (
        SELECT
            (p_job).id,
            (p_job).queue,
            (p_job).kind,
            (p_job).state,
            (p_job).priority,
            (p_job).payload,
            tenure.to_us((p_job).run_at) AS run_at,
            (p_job).attempt,
            (p_job).max_attempts,
            (p_job).crashes,
            (p_job).token,
            tenure.to_us((p_job).created_at) AS created_at,
            tenure.to_us((p_job).updated_at) AS updated_at,
            (p_job).payload_hash,
            (p_job).lease_owner,
            tenure.to_us((p_job).lease_until) AS lease_until,
            (p_job).idempotency_key AS key,
            (p_job).affinity_key,
            (p_job).concurrency_key,
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
            (p_job).run_id,
            (p_job).trace,
            (p_job).backoff,
            (p_job).progress,
            (p_job).result,
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
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT pg_catalog.row_to_json(shown)
    FROM (
        SELECT
            (p_letter).id,
            (p_letter).job_id,
            (p_letter).queue,
            (p_letter).kind,
            (p_letter).state,
            (p_letter).payload,
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
            tenure.to_us((p_queue).paused_at) AS paused_at,
            (p_queue).paused_by,
            tenure.to_us((p_queue).created_at) AS created_at,
            tenure.to_us((p_queue).updated_at) AS updated_at
    ) AS shown);
END
$$;

CREATE OR REPLACE FUNCTION tenure.show_effect(p_effect tenure.effect) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE
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
            (p_effect).args,
            (p_effect).result,
            (p_effect).error,
            tenure.to_us((p_effect).intended_at) AS intended_at,
            tenure.to_us((p_effect).updated_at) AS updated_at
    ) AS shown
$$;

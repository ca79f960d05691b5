-- What agents used. store/usage.py is the specification.

-- usage_count: a number of tokens, 0 if it is none.
CREATE OR REPLACE FUNCTION tenure.usage_count(p_value json) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN json_typeof(p_value) = 'number' AND p_value::text ~ '^[0-9]{1,18}$' THEN least(p_value::text::bigint, 1000000000000) ELSE 0 END $$;

-- sum_usage: {"by": agent|kind|job, "low": id, "high": id, "queues", "kinds", "limit", "steps"} → {"rows": [[name, jobs, calls, input tokens,
-- output tokens, millionths of a dollar]], "is_cut"}, the most tokens first. Of the jobs with ids from low to below high; the index of steps
-- begins with the job's id, and that with its time, so only steps of the span are read, and no more than "steps".
CREATE OR REPLACE FUNCTION tenure.sum_usage(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET enable_seqscan = off
AS $$
    WITH seen AS MATERIALIZED (
        SELECT s.job_id, s.value
        FROM tenure.step AS s
        WHERE s.job_id >= coalesce(tenure.as_uuid(p_request ->> 'low'), '00000000-0000-0000-0000-000000000000')
            AND s.job_id < coalesce(tenure.as_uuid(p_request ->> 'high'), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
        ORDER BY s.job_id DESC
        LIMIT least(10000, coalesce((p_request ->> 'steps')::integer, 10000))
    ), told AS (
        SELECT s.job_id, j.queue, j.kind, tenure.usage_count(s.value -> 'usage' -> 'input_tokens') AS input,
            tenure.usage_count(s.value -> 'usage' -> 'output_tokens') AS output,
            CASE WHEN s.value -> 'usage' ->> 'cost' ~ '^[0-9]{1,12}(\.[0-9]{1,30})?$' THEN least((s.value -> 'usage' ->> 'cost')::numeric, 1000000) ELSE 0 END AS usd
        FROM seen AS s
        JOIN tenure.job AS j ON j.id = s.job_id
        WHERE json_typeof(s.value -> 'usage') = 'object'
            AND (p_request ->> 'queues' IS NULL OR j.queue = ANY (tenure.text_list(p_request -> 'queues')))
            AND (p_request ->> 'kinds' IS NULL OR j.kind = ANY (tenure.text_list(p_request -> 'kinds')))
    ), summed AS (
        SELECT CASE p_request ->> 'by' WHEN 'agent' THEN t.queue WHEN 'kind' THEN t.kind ELSE t.job_id::text END AS name,
            count(DISTINCT t.job_id) AS jobs, count(*) AS calls, sum(t.input)::bigint AS input, sum(t.output)::bigint AS output,
            sum(round(t.usd * 1000000))::bigint AS micro
        FROM told AS t
        GROUP BY 1
        ORDER BY sum(t.input) + sum(t.output) DESC, 1
        LIMIT tenure.page_limit(p_request)
    )
    SELECT json_build_object(
        'rows', (
            SELECT coalesce(json_agg(json_build_array(s.name, s.jobs, s.calls, s.input, s.output, s.micro) ORDER BY s.input + s.output DESC, s.name), '[]')
            FROM summed AS s
        ),
        'is_cut', (SELECT count(*) FROM seen) >= least(10000, coalesce((p_request ->> 'steps')::integer, 10000)))
$$;

-- substrate (specification 002) on PostgreSQL, part two: its functions, the triggers of its views, and who may use what.
--
-- Every function answers jsonb: {"ok": true, …}, or {"ok": false, "error": code, "message": sentence, …}. A closed gate and a lost lease
-- are answers; a payload that the guard refuses, or an argument that makes no sense, is an exception.
-- Ownership: the token, if given, decides; without it the lease_owner must match, and so must be unique per process.

-- gate_key: the name that a gate of Tenure has in dot_config.
CREATE OR REPLACE FUNCTION substrate.gate_key(p_gate text) RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT CASE split_part(p_gate, '.', 2)
        WHEN 'master' THEN 'queue.job_substrate.enabled'
        WHEN 'worker' THEN 'queue.worker.enabled'
        WHEN 'notify' THEN 'queue.notify.enabled'
        WHEN 'heartbeat' THEN 'queue.heartbeat.enabled'
        ELSE p_gate
    END
$$;

-- refusal: what to answer if one of the gates is closed; null if they are open.
CREATE OR REPLACE FUNCTION substrate.refusal(p_gate text, p_act text) RETURNS jsonb
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT jsonb_build_object('ok', false, 'error', 'gate_closed', 'gate', substrate.gate_key(g.name), 'message', format(
        '%s is refused, because %s is false. Nothing was changed. An admin opens it: UPDATE substrate.dot_config SET value = ''true'' '
        'WHERE key = ''%s''.', p_act, substrate.gate_key(g.name), substrate.gate_key(g.name)))
    FROM tenure.closed_gate('substrate', ARRAY[p_gate]) AS g(name)
    WHERE g.name IS NOT NULL
$$;

CREATE OR REPLACE FUNCTION substrate.lost(p_job_id uuid) RETURNS jsonb
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT jsonb_build_object('ok', false, 'error', 'lease_lost', 'job_id', p_job_id, 'state', (
            SELECT q.state FROM substrate.job_queue AS q WHERE q.job_id = p_job_id),
        'message', 'The job is not leased to this owner (any more), so nothing was changed. Claim again.')
$$;

-- enqueue: what fn_job_enqueue and an INSERT INTO job_queue do; the latter may bring an id of its own.
CREATE OR REPLACE FUNCTION substrate.enqueue(
    p_job_id uuid, p_job_kind text, p_idempotency_key text, p_actor text, p_payload_json jsonb, p_source_ref text, p_target_ref text,
    p_payload_ref text, p_priority integer, p_scheduled_at timestamptz, p_max_attempts integer, p_run_id uuid
) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_refusal jsonb := substrate.refusal('master', 'fn_job_enqueue');
    v_put json;
BEGIN
    IF v_refusal IS NOT NULL THEN
        RETURN v_refusal;
    END IF;
    IF coalesce(btrim(p_actor), '') = '' OR p_priority < 0 THEN
        RAISE EXCEPTION 'A job needs an actor, and a priority that is not negative. Nothing was enqueued.' USING ERRCODE = 'TN007';
    END IF;
    v_put := tenure.put_job('substrate', 'substrate', p_job_kind, json_build_object(
        'i', p_job_id, 'p', coalesce(p_payload_json, '{}'), 'r', p_priority, 'k', p_idempotency_key, 'm', p_max_attempts,
        'a', tenure.to_us(p_scheduled_at),
        'x', json_strip_nulls(json_build_object(
            'actor', p_actor, 'source_ref', p_source_ref, 'target_ref', p_target_ref, 'payload_ref', p_payload_ref, 'run_id', p_run_id))));
    RETURN jsonb_build_object('ok', true, 'job_id', v_put -> 'id', 'duplicate', v_put -> 'duplicate', 'state', (
        SELECT q.state FROM substrate.job_queue AS q WHERE q.job_id = (v_put ->> 'id')::uuid));
END
$$;

-- fn_job_enqueue: 11 parameters. A key that is taken by an active job answers that job with duplicate = true.
CREATE OR REPLACE FUNCTION substrate.fn_job_enqueue(
    p_job_kind text,
    p_idempotency_key text,
    p_actor text,
    p_payload_json jsonb DEFAULT '{}',
    p_source_ref text DEFAULT NULL,
    p_target_ref text DEFAULT NULL,
    p_payload_ref text DEFAULT NULL,
    p_priority integer DEFAULT NULL,
    p_scheduled_at timestamptz DEFAULT NULL,
    p_max_attempts integer DEFAULT NULL,
    p_run_id uuid DEFAULT NULL
) RETURNS jsonb
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT substrate.enqueue(NULL, p_job_kind, p_idempotency_key, p_actor, p_payload_json, p_source_ref, p_target_ref, p_payload_ref,
        p_priority, p_scheduled_at, p_max_attempts, p_run_id)
$$;

-- fn_job_claim: 3 parameters. Takes the next due job under a lease: {"ok": true, "job": {…, "token": n}}; "job" is null if there is none.
CREATE OR REPLACE FUNCTION substrate.fn_job_claim(p_lease_owner text, p_job_kinds text[] DEFAULT NULL, p_lease_seconds integer DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_refusal jsonb := substrate.refusal('master', 'fn_job_claim');
    v_grant json;
BEGIN
    IF v_refusal IS NOT NULL THEN
        RETURN v_refusal;
    END IF;
    IF coalesce(btrim(p_lease_owner), '') = '' THEN
        RAISE EXCEPTION 'A claim needs a lease_owner, unique per process.' USING ERRCODE = 'TN007';
    END IF;
    v_grant := tenure.claim_jobs(
        json_strip_nulls(json_build_object(
            'worker', p_lease_owner, 'limit', 1, 'kinds', p_job_kinds, 'lease', p_lease_seconds,
            'queues', (SELECT json_agg(q.name ORDER BY q.name) FROM tenure.queue AS q WHERE q.profile = 'substrate'))),
        tenure.now(), false) #> '{lines,0,3,0}';
    RETURN jsonb_build_object('ok', true, 'job', (
        SELECT to_jsonb(q) || jsonb_build_object('token', (v_grant ->> 2)::bigint)
        FROM substrate.job_queue AS q
        WHERE q.job_id = (v_grant ->> 0)::uuid));
END
$$;

-- fn_job_ack: 3 parameters and the token. The job has succeeded.
CREATE OR REPLACE FUNCTION substrate.fn_job_ack(p_job_id uuid, p_lease_owner text, p_result jsonb DEFAULT NULL, p_token bigint DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_refusal jsonb := substrate.refusal('master', 'fn_job_ack');
    v_token bigint := tenure.grant_of('substrate', p_job_id, p_lease_owner, p_token);
BEGIN
    IF v_refusal IS NOT NULL THEN
        RETURN v_refusal;
    END IF;
    IF tenure.settle_one(p_job_id, v_token, jsonb_build_object('o', 'complete', 'r', p_result)) IS NULL THEN
        RETURN substrate.lost(p_job_id);
    END IF;
    RETURN (SELECT jsonb_build_object('ok', true, 'job_id', q.job_id, 'state', q.state, 'attempts', q.attempts)
        FROM substrate.job_queue AS q WHERE q.job_id = p_job_id);
END
$$;

-- fn_job_fail_or_retry: 4 parameters and the token. Waits by backoff (p_retry_after_sec wins), or goes to the dead letters.
CREATE OR REPLACE FUNCTION substrate.fn_job_fail_or_retry(
    p_job_id uuid, p_lease_owner text, p_error text, p_retry_after_sec integer DEFAULT NULL, p_token bigint DEFAULT NULL
) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_refusal jsonb := substrate.refusal('master', 'fn_job_fail_or_retry');
    v_token bigint := tenure.grant_of('substrate', p_job_id, p_lease_owner, p_token);
BEGIN
    IF v_refusal IS NOT NULL THEN
        RETURN v_refusal;
    END IF;
    IF tenure.settle_one(p_job_id, v_token, jsonb_build_object('o', 'fail', 'c', 'error', 'e', p_error, 'd', p_retry_after_sec)) IS NULL THEN
        RETURN substrate.lost(p_job_id);
    END IF;
    RETURN (
        SELECT jsonb_build_object('ok', true, 'job_id', q.job_id, 'state', q.state, 'attempts', q.attempts, 'max_attempts', q.max_attempts,
            'scheduled_at', CASE WHEN q.state = 'retry_waiting' THEN q.scheduled_at END,
            'dead_letter_id', (SELECT d.dead_letter_id FROM substrate.job_dead_letter AS d
                WHERE d.job_id = q.job_id AND q.state = 'dead_letter' ORDER BY d.moved_at DESC LIMIT 1))
        FROM substrate.job_queue AS q
        WHERE q.job_id = p_job_id);
END
$$;

-- fn_job_move_to_dead_letter: 3 parameters and the token. Buries a job before its attempts are spent. Its holder may, by the name under
-- which it holds it; operators and admins may for jobs that no worker holds.
CREATE OR REPLACE FUNCTION substrate.fn_job_move_to_dead_letter(p_job_id uuid, p_final_error text, p_moved_by text, p_token bigint DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_refusal jsonb := substrate.refusal('master', 'fn_job_move_to_dead_letter');
    v_job tenure.job;
    v_made integer;
BEGIN
    IF v_refusal IS NOT NULL THEN
        RETURN v_refusal;
    END IF;
    IF coalesce(btrim(p_final_error), '') = '' OR coalesce(btrim(p_moved_by), '') = '' THEN
        RAISE EXCEPTION 'A dead letter needs a final_error and who moved it. Nothing was changed.' USING ERRCODE = 'TN007';
    END IF;
    SELECT * INTO v_job FROM tenure.job AS j WHERE j.id = p_job_id AND j.profile = 'substrate' FOR UPDATE;
    IF v_job.state IN ('leased', 'running') THEN
        IF tenure.grant_of('substrate', p_job_id, p_moved_by, p_token) IS NULL THEN
            RETURN substrate.lost(p_job_id);
        END IF;
    ELSIF v_job.state = 'queued' THEN
        IF NOT tenure.may('cancel') THEN
            RETURN substrate.lost(p_job_id);
        END IF;
    ELSE
        RETURN jsonb_build_object('ok', false, 'error', 'illegal_move', 'job_id', p_job_id, 'message', format(
            'Only a job that is still to do can be moved to the dead letters; this one is %s. Nothing was changed.',
            coalesce((SELECT q.state FROM substrate.job_queue AS q WHERE q.job_id = p_job_id), 'not there')));
    END IF;
    v_made := v_job.attempt;
    v_job.attempt := greatest(v_made, 1);
    v_job.max_attempts := v_job.attempt;  -- finish finds none left, and buries it
    v_job.lease_owner := p_moved_by;
    PERFORM tenure.finish(v_job, 'fail', 'permanent', p_final_error, NULL, NULL, tenure.now());
    IF v_made = 0 THEN
        UPDATE tenure.dead_letter AS d SET attempts = 0 WHERE d.job_id = p_job_id AND d.token = v_job.token;
        UPDATE tenure.attempt AS a SET attempt = 0 WHERE a.job_id = p_job_id AND a.token = v_job.token;
    END IF;
    RETURN (
        SELECT jsonb_build_object('ok', true, 'job_id', p_job_id, 'state', q.state, 'dead_letter_id', d.dead_letter_id)
        FROM substrate.job_queue AS q
        LEFT JOIN substrate.job_dead_letter AS d ON d.job_id = q.job_id
        WHERE q.job_id = p_job_id
        ORDER BY d.moved_at DESC
        LIMIT 1);
END
$$;

-- fn_queue_heartbeat_tick: 6 parameters and the token. Notes that an executor is alive; what it holds under p_lease_owner as its current
-- job is in progress from then on, with its lease extended: "lease_until", or null if it holds that job no more.
CREATE OR REPLACE FUNCTION substrate.fn_queue_heartbeat_tick(
    p_executor_name text,
    p_executor_kind text,
    p_status text DEFAULT 'ok',
    p_current_job_id uuid DEFAULT NULL,
    p_lease_owner text DEFAULT NULL,
    p_metadata jsonb DEFAULT '{}',
    p_token bigint DEFAULT NULL
) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_refusal jsonb := substrate.refusal('heartbeat', 'fn_queue_heartbeat_tick');
    v_token bigint;
BEGIN
    IF v_refusal IS NOT NULL THEN
        RETURN v_refusal;
    END IF;
    IF p_current_job_id IS NOT NULL THEN
        v_token := tenure.grant_of('substrate', p_current_job_id, p_lease_owner, p_token);
        IF json_array_length(tenure.heartbeat(
            json_build_object('holds', json_build_array(json_build_object('i', p_current_job_id, 't', v_token)))) -> 'lost') > 0
        THEN
            v_token := NULL;
        END IF;
    END IF;
    PERFORM tenure.refresh_worker(
        json_build_object(
            'id', p_executor_name, 'hostname', coalesce(inet_client_addr()::text, 'local'), 'pid', pg_backend_pid(),
            'queues', json_build_array('substrate'), 'kinds', '[]'::json, 'concurrency', 1, 'version', '', 'executor_kind', p_executor_kind,
            'status', p_status, 'current_job_id', p_current_job_id,
            'info', coalesce(p_metadata, '{}') || jsonb_strip_nulls(jsonb_build_object('lease_owner', p_lease_owner))),
        true, v_now);
    IF (SELECT m.counted_until < v_now - interval '5 minutes' FROM tenure.tally_mark AS m) THEN
        PERFORM tenure.tally_up(v_now);  -- Where no worker of Tenure runs, executors keep the tally.
    END IF;
    RETURN (
        SELECT jsonb_build_object('ok', true, 'executor_name', h.executor_name, 'ticks_total', h.ticks_total, 'lease_until', (
            SELECT j.lease_until FROM tenure.job AS j WHERE j.id = p_current_job_id AND j.token = v_token))
        FROM substrate.queue_heartbeat AS h
        WHERE h.executor_name = p_executor_name);
END
$$;

-- fn_queue_stale_check: 1 parameter. Who has not ticked for so long. Reads with the caller's own rights and changes nothing.
CREATE OR REPLACE FUNCTION substrate.fn_queue_stale_check(p_threshold_seconds integer DEFAULT NULL) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT jsonb_build_object(
        'ok', true,
        'threshold_seconds', t.seconds,
        'fresh', count(*) FILTER (WHERE a.age <= t.seconds),
        'warning', count(*) FILTER (WHERE a.age > t.seconds AND a.age <= 2 * t.seconds),
        'stale', count(*) FILTER (WHERE a.age > 2 * t.seconds),
        'executors', coalesce(jsonb_agg(jsonb_build_object(
            'executor_name', a.executor_name, 'executor_kind', a.executor_kind, 'age_seconds', a.age, 'state', CASE
                WHEN a.age <= t.seconds THEN 'fresh' WHEN a.age <= 2 * t.seconds THEN 'warning' ELSE 'stale' END
        ) ORDER BY a.age DESC) FILTER (WHERE a.executor_name IS NOT NULL), '[]'))
    FROM (
        SELECT coalesce(p_threshold_seconds, (
            SELECT c.value::double precision FROM substrate.dot_config AS c WHERE c.key = 'queue.heartbeat.stale_threshold_seconds')) AS seconds
    ) AS t
    LEFT JOIN (
        SELECT h.executor_name, h.executor_kind, EXTRACT(epoch FROM tenure.now() - h.last_tick_at)::double precision AS age
        FROM substrate.queue_heartbeat AS h
    ) AS a ON true
    GROUP BY t.seconds
$$;

-- enqueue_job: INSERT INTO job_queue. A closed gate is an exception here: an INSERT cannot answer politely.
CREATE OR REPLACE FUNCTION substrate.enqueue_job() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_answer jsonb;
BEGIN
    IF coalesce(NEW.state, 'queued') <> 'queued' OR coalesce(NEW.attempts, 0) <> 0
        OR num_nonnulls(NEW.picked_at, NEW.finished_at, NEW.lease_owner, NEW.lease_until, NEW.last_error) > 0
    THEN
        RAISE EXCEPTION 'A job begins as queued, with no attempts made; its moves set picked_at, finished_at, lease_owner, lease_until and last_error. '
            'Nothing was enqueued.' USING ERRCODE = 'TN008';
    END IF;
    v_answer := substrate.enqueue(NEW.job_id, NEW.job_kind, NEW.idempotency_key, NEW.actor, NEW.payload_json, NEW.source_ref,
        NEW.target_ref, NEW.payload_ref, NEW.priority, NEW.scheduled_at, NEW.max_attempts, NEW.run_id);
    IF NOT (v_answer ->> 'ok')::boolean THEN
        RAISE EXCEPTION '%', v_answer ->> 'message' USING
            ERRCODE = 'TN002', DETAIL = json_build_object('gate', tenure.closed_gate('substrate', '{master}'), 'act', 'enqueue')::text;
    END IF;
    SELECT * INTO NEW FROM substrate.job_queue AS q WHERE q.job_id = (v_answer ->> 'job_id')::uuid;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER enqueue INSTEAD OF INSERT ON substrate.job_queue
FOR EACH ROW EXECUTE FUNCTION substrate.enqueue_job();

-- refuse_change: an UPDATE or DELETE of job_queue is an error even if it matches no row, so that a mistaken statement is noticed.
CREATE OR REPLACE FUNCTION substrate.refuse_change() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'Jobs are not changed by % on substrate.job_queue: a write that names no grant could come from a worker that lost its lease. '
        'Nothing was changed.', TG_OP
        USING ERRCODE = 'TN008', HINT = 'Use substrate.fn_job_claim, fn_job_ack, fn_job_fail_or_retry or fn_job_move_to_dead_letter; '
            'tenure.cancel and tenure.revive are for operators.';
END
$$;
CREATE OR REPLACE TRIGGER refuse INSTEAD OF UPDATE OR DELETE ON substrate.job_queue
FOR EACH ROW EXECUTE FUNCTION substrate.refuse_change();
CREATE OR REPLACE TRIGGER refuse_all BEFORE UPDATE OR DELETE ON substrate.job_queue
FOR EACH STATEMENT EXECUTE FUNCTION substrate.refuse_change();

-- triage: UPDATE job_dead_letter sets what was decided. manual_replay queues the job again.
CREATE OR REPLACE FUNCTION substrate.triage() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_actor text := coalesce(nullif(btrim(NEW.triaged_by), ''), session_user);
    v_triage constant text[] := '{triage_status,triage_note,triaged_at,triaged_by}';
BEGIN
    IF to_jsonb(NEW) - v_triage <> to_jsonb(OLD) - v_triage THEN
        RAISE EXCEPTION 'Of dead letter % only triage_status, triage_note and triaged_by can be set: the rest says what happened. Nothing was changed.',
            OLD.dead_letter_id USING ERRCODE = 'TN008';
    END IF;
    IF NEW.triage_status = 'manual_replay' AND OLD.triage_status <> 'manual_replay'
        AND tenure.revive(json_build_object('job_ids', json_build_array(OLD.job_id), 'actor', v_actor, 'reason',
            coalesce(NEW.triage_note, 'manual_replay'))) #>> '{0,2}' IS NULL
    THEN
        RAISE EXCEPTION 'Job % could not be queued again: it is no longer dead, or another job holds its key.', OLD.job_id USING ERRCODE = 'TN008';
    END IF;
    PERFORM tenure.triage_dead_letters(json_build_object(
        'ids', json_build_array(OLD.dead_letter_id), 'triage', NEW.triage_status, 'actor', v_actor, 'note', NEW.triage_note));
    SELECT * INTO NEW FROM substrate.job_dead_letter AS d WHERE d.dead_letter_id = OLD.dead_letter_id;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER triage INSTEAD OF UPDATE ON substrate.job_dead_letter
FOR EACH ROW EXECUTE FUNCTION substrate.triage();

-- set_config: UPDATE dot_config opens and closes gates, and tunes every queue of the profile.
CREATE OR REPLACE FUNCTION substrate.set_config() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_gate text;
    v_change jsonb;
BEGIN
    IF NEW.key IS DISTINCT FROM OLD.key THEN
        RAISE EXCEPTION 'A key of dot_config cannot be renamed.' USING ERRCODE = 'TN008';
    END IF;
    SELECT g.name INTO v_gate FROM unnest('{master,worker,notify,heartbeat}'::text[]) AS g(name) WHERE substrate.gate_key('.' || g.name) = NEW.key;
    IF FOUND THEN
        IF coalesce(NEW.value, '') !~* '^\s*(true|false|on|off|yes|no|t|f|y|n|1|0)\s*$' THEN
            RAISE EXCEPTION '% must be true or false, not %. Nothing was changed.', NEW.key, quote_nullable(NEW.value) USING ERRCODE = 'TN007';
        END IF;
        PERFORM tenure.set_gate(json_build_object('name', 'substrate.' || v_gate, 'is_open', NEW.value::boolean, 'actor', session_user));
        RETURN NEW;
    END IF;
    IF coalesce(NEW.value, '') !~ (
        CASE NEW.key WHEN 'queue.retry.max_attempts_default' THEN '^0*[1-9][0-9]{0,8}$' ELSE '^(?=.*[1-9])[0-9]{1,9}([.][0-9]{1,9})?$' END)
    THEN
        RAISE EXCEPTION '% must be a % more than 0, not %. Nothing was changed.', NEW.key,
            CASE NEW.key WHEN 'queue.retry.max_attempts_default' THEN 'whole number' ELSE 'number' END, quote_nullable(NEW.value)
            USING ERRCODE = 'TN007';
    END IF;
    v_change := CASE NEW.key
        WHEN 'queue.retry.max_attempts_default' THEN jsonb_build_object('max_attempts', NEW.value::integer)
        WHEN 'queue.retry.backoff_base_sec' THEN jsonb_build_object(
            'backoff_base_seconds', NEW.value::double precision, 'backoff_cap_seconds', NEW.value::double precision * 1024)
        WHEN 'queue.lease.duration_sec' THEN jsonb_build_object('lease_seconds', NEW.value::double precision)
    END;
    IF v_change IS NOT NULL THEN
        PERFORM tenure.set_queues(json_build_object('actor', session_user, 'policies', (
            SELECT json_object_agg(q.name, v_change) FROM tenure.queue AS q WHERE q.profile = 'substrate')));
    ELSE
        PERFORM tenure.write_audit(tenure.now(), session_user, 'set_profile', 'substrate', NULL, json_build_object(NEW.key, NEW.value));
        UPDATE tenure.profile AS p
        SET settings = p.settings || jsonb_build_object(NEW.key, NEW.value::double precision), updated_at = tenure.now()
        WHERE p.name = 'substrate';
    END IF;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER set INSTEAD OF UPDATE ON substrate.dot_config
FOR EACH ROW EXECUTE FUNCTION substrate.set_config();

SELECT tenure.hand_over('substrate', '{
    "SELECT ON job_queue": "worker reader operator admin",
    "SELECT (job_id) ON job_queue": "producer",
    "INSERT ON job_queue": "producer worker operator admin",
    "SELECT ON job_dead_letter": "reader operator admin",
    "UPDATE ON job_dead_letter": "operator admin",
    "SELECT ON queue_heartbeat": "worker reader operator admin",
    "SELECT ON v_queue_health": "reader operator admin",
    "SELECT ON v_job_queue_backlog": "reader operator admin",
    "SELECT ON v_job_dead_letter_summary": "reader operator admin",
    "SELECT ON dot_config": "worker reader operator admin",
    "UPDATE ON dot_config": "admin",
    "EXECUTE ON FUNCTION fn_job_enqueue": "producer worker operator admin",
    "EXECUTE ON FUNCTION fn_job_claim": "worker admin",
    "EXECUTE ON FUNCTION fn_job_ack": "worker admin",
    "EXECUTE ON FUNCTION fn_job_fail_or_retry": "worker admin",
    "EXECUTE ON FUNCTION fn_job_move_to_dead_letter": "worker operator admin",
    "EXECUTE ON FUNCTION fn_queue_heartbeat_tick": "worker admin",
    "EXECUTE ON FUNCTION fn_queue_stale_check": "worker reader operator admin"
}');

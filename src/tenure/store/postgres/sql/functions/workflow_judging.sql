-- Judging workflows: thresholds, what a breach does, and the ladder of escalation. The rules stand in store/workflows.py; the SQLite engine
-- has them in the same words in workflow_judging.py.

-- judge_workflow: whether its counts breach a workflow's policy, or end it. Its row is locked.
CREATE OR REPLACE FUNCTION tenure.judge_workflow(p_id uuid, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_run tenure.workflow;
    v_is_breached boolean;
BEGIN
    SELECT * INTO v_run FROM tenure.workflow AS w WHERE w.id = p_id;
    IF NOT FOUND OR v_run.state NOT IN ('running', 'escalated') OR v_run.phase IN ('loading', 'retrying') THEN
        RETURN;
    END IF;
    v_is_breached := v_run.is_judged AND tenure.is_breached(v_run);
    IF v_run.state = 'escalated' THEN
        IF NOT v_is_breached AND (
            SELECT e.reason FROM tenure.escalation AS e WHERE e.workflow_id = p_id AND e.state = 'open' ORDER BY e.level DESC LIMIT 1
        ) = 'threshold' THEN
            -- Failed tasks were revived: the question has answered itself.
            PERFORM tenure.close_escalations(p_id, p_now);
            UPDATE tenure.workflow AS w SET error = NULL WHERE w.id = p_id;
            PERFORM tenure.go_forward(p_id, p_now);
        END IF;
        RETURN;
    END IF;
    IF v_is_breached AND v_run.phase = 'forward' THEN
        PERFORM tenure.breach_workflow(v_run, 'threshold', format('%s of %s tasks failed',
            to_char(v_run.failed, 'FM999,999,999,990'), to_char(v_run.total, 'FM999,999,999,990')), p_now);
        SELECT * INTO v_run FROM tenure.workflow AS w WHERE w.id = p_id;
        IF v_run.state <> 'running' THEN
            RETURN;
        END IF;
    END IF;
    IF v_run.succeeded + v_run.failed + v_run.tolerated + v_run.skipped + v_run.cancelled >= v_run.total THEN
        UPDATE tenure.workflow AS w
        SET state = CASE w.phase WHEN 'draining' THEN 'failed' ELSE 'completed' END,
            finished_at = p_now,
            due_at = NULL,
            updated_at = p_now
        WHERE w.id = p_id;
        IF v_run.phase = 'draining' THEN
            PERFORM tenure.undo_workflow(v_run);
        END IF;
    END IF;
END
$$;

-- is_breached: whether so much failed that the policy counts it as too much. model/workflow.py has the same rule.
CREATE OR REPLACE FUNCTION tenure.is_breached(p_run tenure.workflow) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT CASE
        WHEN f.fail ->> 'count' IS NOT NULL THEN (p_run).failed >= (f.fail ->> 'count')::integer
        WHEN f.fail ->> 'ppm' IS NULL OR (p_run).failed = 0 THEN false
        ELSE (p_run).succeeded + (p_run).failed + (p_run).tolerated + (p_run).skipped + (p_run).cancelled
            >= coalesce((f.fail ->> 'at_least')::integer, 0)
            AND (p_run).failed::bigint * 1000000 >= (f.fail ->> 'ppm')::bigint * (p_run).total
    END
    FROM (SELECT (p_run).policy -> 'fail' AS fail) AS f
$$;

-- is_threshold: whether a JSON value says a threshold. model/workflow.py has the same rule.
CREATE OR REPLACE FUNCTION tenure.is_threshold(p_given json) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce(
        json_typeof(p_given) = 'object' AND num_nonnulls(p_given ->> 'count', p_given ->> 'ppm') = 1
            AND coalesce(nullif(json_typeof(p_given -> 'count'), 'null'), json_typeof(p_given -> 'ppm')) = 'number'
            AND coalesce(p_given ->> 'count', p_given ->> 'ppm') ~ '^[1-9][0-9]{0,8}$'
            AND (p_given ->> 'at_least' IS NULL
                OR json_typeof(p_given -> 'at_least') = 'number' AND p_given ->> 'at_least' ~ '^(0|[1-9][0-9]{0,8})$'),
        false)
$$;

-- breach_workflow: too much failed, or it took too long: do what the policy says.
CREATE OR REPLACE FUNCTION tenure.breach_workflow(p_run tenure.workflow, p_reason text, p_detail text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_act text := coalesce(p_run.policy ->> 'on_breach', 'fail');
BEGIN
    IF v_act = 'continue' THEN
        UPDATE tenure.workflow AS w SET error = p_detail, is_judged = false, updated_at = p_now WHERE w.id = p_run.id;
    ELSIF v_act = 'drain' THEN
        UPDATE tenure.workflow AS w SET phase = 'draining', error = p_detail, is_judged = false, updated_at = p_now WHERE w.id = p_run.id;
        INSERT INTO tenure.workflow_event (kind, workflow_id, was, after)
        VALUES ('cancel', p_run.id, 'blocked', '00000000-0000-0000-0000-000000000000');
    ELSIF v_act = 'escalate' THEN
        UPDATE tenure.workflow AS w SET state = 'escalated', phase = 'held', error = p_detail, updated_at = p_now WHERE w.id = p_run.id;
        PERFORM tenure.escalate_workflow(p_run, p_reason, p_detail, 1, p_now);
    ELSE
        PERFORM tenure.stop_workflow(p_run.id, 'failed', p_detail, p_now);
    END IF;
END
$$;

-- stop_workflow: end a workflow now; what is open is cancelled page by page.
CREATE OR REPLACE FUNCTION tenure.stop_workflow(p_id uuid, p_state text, p_error text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM tenure.close_escalations(p_id, p_now);
    UPDATE tenure.workflow AS w
    SET state = p_state, phase = 'stopped', error = p_error, finished_at = p_now, due_at = NULL, updated_at = p_now
    WHERE w.id = p_id;
    INSERT INTO tenure.workflow_event (kind, workflow_id, was, after) VALUES ('cancel', p_id, 'all', '00000000-0000-0000-0000-000000000000');
    PERFORM tenure.undo_workflow(w) FROM tenure.workflow AS w WHERE w.id = p_id;
END
$$;

-- is_refusal: whether an error is due to what was given or stands in the database, so that another try would end alike: one of our own
-- refusals, or a value that does not fit. What one workflow's data make impossible must stop no other.
CREATE OR REPLACE FUNCTION tenure.is_refusal(p_sqlstate text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT left(p_sqlstate, 2) IN ('TN', '22', '23', 'P0') $$;

-- give_up_workflow: a workflow that cannot go on has failed: no other must wait for it. What was to be folded of it goes; the cancel looks at
-- every task that is not counted yet.
CREATE OR REPLACE FUNCTION tenure.give_up_workflow(p_id uuid, p_why text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_run tenure.workflow;
BEGIN
    SELECT * INTO v_run FROM tenure.workflow AS w WHERE w.id = p_id FOR UPDATE;
    DELETE FROM tenure.workflow_event AS e
    WHERE e.seq IN (SELECT o.seq FROM tenure.workflow_event AS o WHERE o.workflow_id = p_id FOR UPDATE SKIP LOCKED);
    IF v_run.state IN ('running', 'escalated') THEN
        PERFORM tenure.close_escalations(p_id, p_now);
        UPDATE tenure.workflow AS w
        SET state = 'failed', phase = 'stopped', error = 'It could not go on: ' || p_why, finished_at = p_now, due_at = NULL, updated_at = p_now
        WHERE w.id = p_id;
        INSERT INTO tenure.workflow_event (kind, workflow_id, was, after) VALUES ('cancel', p_id, 'all', '00000000-0000-0000-0000-000000000000');
    END IF;
END
$$;

-- undo_workflow: let what succeeded be undone, where tasks say how. The job is read by flow/compensation.py.
CREATE OR REPLACE FUNCTION tenure.undo_workflow(p_run tenure.workflow) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_run.policy -> 'undo' IS NOT NULL THEN
        PERFORM tenure.put_jobs(json_build_array(json_build_object(
            'queue', 'compensation', 'kind', 'tenure.undo_workflow', 'jobs', json_build_array(json_build_object(
                'i', tenure.new_id(tenure.now()), 'x', json_build_object('actor', 'orchestrator'),
                'p', json_build_object('workflow_id', p_run.id))))), false);
    END IF;
END
$$;

-- go_forward: what was held back is released, and the next breach is another round.
CREATE OR REPLACE FUNCTION tenure.go_forward(p_id uuid, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE tenure.workflow AS w SET state = 'running', phase = 'forward', round = w.round + 1, updated_at = p_now WHERE w.id = p_id;
    INSERT INTO tenure.workflow_event (kind, workflow_id) VALUES ('release', p_id);
END
$$;

-- begin_retry: what failed runs again, page by page; nothing is judged meanwhile.
CREATE OR REPLACE FUNCTION tenure.begin_retry(p_id uuid, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE tenure.workflow AS w
    SET state = 'running', phase = 'retrying', error = NULL, is_judged = true, round = w.round + 1, finished_at = NULL, updated_at = p_now
    WHERE w.id = p_id;
    INSERT INTO tenure.workflow_event (kind, workflow_id, was, after) VALUES ('retry', p_id, 'failed', '00000000-0000-0000-0000-000000000000');
END
$$;

-- escalate_workflow: ask a level of the ladder. One row per round and level, however often it is tried.
CREATE OR REPLACE FUNCTION tenure.escalate_workflow(
    p_run tenure.workflow, p_reason text, p_detail text, p_level integer, p_now timestamptz
) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_target json := p_run.policy -> 'ladder' -> (p_level - 1);
    v_id uuid := tenure.new_id(p_now);
    v_job uuid := CASE WHEN v_target ->> 'person' IS NULL THEN tenure.new_id(p_now) END;
BEGIN
    INSERT INTO tenure.escalation (id, workflow_id, round, level, reason, detail, target, person, job_id, due_at, created_at)
    VALUES (
        v_id, p_run.id, p_run.round, p_level, p_reason, p_detail, v_target, v_target ->> 'person', v_job,
        p_now + (v_target ->> 'after')::double precision * interval '1 second', p_now
    )
    ON CONFLICT DO NOTHING;
    IF NOT FOUND OR v_job IS NULL THEN
        RETURN;
    END IF;
    BEGIN
        PERFORM tenure.put_jobs(json_build_array(json_build_object(
            'queue', v_target ->> 'queue', 'kind', v_target ->> 'kind', 'jobs', json_build_array(json_build_object(
                'i', v_job, 'x', json_build_object('workflow_id', p_run.id, 'actor', 'orchestrator'), 'p', json_build_object(
                    'escalation_id', v_id, 'workflow_id', p_run.id, 'workflow', p_run.kind, 'reason', p_reason, 'detail', p_detail,
                    'level', p_level, 'counts', json_build_object('total', p_run.total, 'succeeded', p_run.succeeded, 'failed', p_run.failed,
                        'tolerated', p_run.tolerated, 'skipped', p_run.skipped, 'cancelled', p_run.cancelled),
                    'answers', json_build_array('go_on', 'retry_failed', 'raise_threshold', 'fail', 'cancel')))))), false);
    EXCEPTION WHEN OTHERS THEN
        IF NOT tenure.is_refusal(SQLSTATE) THEN
            RAISE;
        END IF;
        PERFORM tenure.pass_on(v_id, p_now, SQLERRM);
    END;
END
$$;

-- pass_on: a level did not answer, or cannot be asked: ask the next, or fail where there is none. The workflow's row is locked.
CREATE OR REPLACE FUNCTION tenure.pass_on(p_id uuid, p_now timestamptz, p_why text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_asked tenure.escalation;
    v_run tenure.workflow;
BEGIN
    UPDATE tenure.escalation AS e SET state = 'passed', ended_at = p_now, note = p_why WHERE e.id = p_id AND e.state = 'open' RETURNING * INTO v_asked;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO v_run FROM tenure.workflow AS w WHERE w.id = v_asked.workflow_id;
    IF v_run.state <> 'escalated' THEN
        RETURN;
    END IF;
    IF v_asked.level < json_array_length(v_run.policy -> 'ladder') THEN
        PERFORM tenure.escalate_workflow(v_run, v_asked.reason, v_asked.detail, v_asked.level + 1, p_now);
    ELSE
        PERFORM tenure.stop_workflow(v_run.id, 'failed', v_asked.detail || ', and no one answered the escalation', p_now);
    END IF;
END
$$;

-- hear_answer: the job that asked an agent or a queue has ended: its result is the answer. Without one the next level is asked.
CREATE OR REPLACE FUNCTION tenure.hear_answer(p_id uuid, p_state text, p_result json, p_queue text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_said text := CASE WHEN p_state = 'succeeded' AND json_typeof(p_result) = 'object' THEN p_result ->> 'answer' END;
BEGIN
    IF v_said IN ('go_on', 'retry_failed', 'raise_threshold', 'fail', 'cancel')
        AND (v_said <> 'raise_threshold' OR tenure.is_threshold(p_result -> 'threshold'))
    THEN
        PERFORM tenure.apply_answer(p_id, v_said, p_queue, CASE json_typeof(p_result -> 'note') WHEN 'string' THEN p_result ->> 'note' END,
            p_result -> 'threshold', p_now);
    ELSE
        PERFORM tenure.pass_on(p_id, p_now);
    END IF;
END
$$;

-- apply_answer: what was answered, by whom. The workflow's row is locked, the escalation open.
CREATE OR REPLACE FUNCTION tenure.apply_answer(
    p_id uuid, p_answer text, p_actor text, p_note text, p_threshold json, p_now timestamptz
) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_asked tenure.escalation;
BEGIN
    UPDATE tenure.escalation AS e
    SET state = 'answered', ended_at = p_now, answer = p_answer, answered_by = p_actor, note = p_note
    WHERE e.id = p_id AND e.state = 'open'
    RETURNING * INTO v_asked;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM tenure.write_audit(p_now, p_actor, 'answer_escalation', p_id::text, p_note,
        json_build_object('workflow_id', v_asked.workflow_id, 'answer', p_answer, 'threshold', p_threshold));
    IF p_answer = 'go_on' THEN
        UPDATE tenure.workflow AS w SET is_judged = false WHERE w.id = v_asked.workflow_id;
        PERFORM tenure.go_forward(v_asked.workflow_id, p_now);
    ELSIF p_answer = 'raise_threshold' THEN
        UPDATE tenure.workflow AS w SET policy = (w.policy::jsonb || jsonb_build_object('fail', p_threshold))::json
        WHERE w.id = v_asked.workflow_id;
        PERFORM tenure.go_forward(v_asked.workflow_id, p_now);
    ELSIF p_answer = 'retry_failed' THEN
        PERFORM tenure.begin_retry(v_asked.workflow_id, p_now);
    ELSIF p_answer = 'fail' THEN
        PERFORM tenure.stop_workflow(v_asked.workflow_id, 'failed', v_asked.detail || '; ' || p_actor || ' answered: fail', p_now);
    ELSE
        PERFORM tenure.stop_workflow(v_asked.workflow_id, 'cancelled', p_actor || ' answered: cancel', p_now);
    END IF;
END
$$;

-- close_escalations: the questions about a workflow are no longer needed.
CREATE OR REPLACE FUNCTION tenure.close_escalations(p_workflow uuid, p_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_jobs uuid[];
BEGIN
    WITH closed AS (
        UPDATE tenure.escalation AS e SET state = 'closed', ended_at = p_now
        WHERE e.workflow_id = p_workflow AND e.state = 'open'
        RETURNING e.job_id
    )
    SELECT array_agg(c.job_id) INTO v_jobs FROM closed AS c WHERE c.job_id IS NOT NULL;
    IF v_jobs IS NOT NULL THEN
        PERFORM tenure.cancel_blocked(v_jobs, 'workflow', 'The question is no longer open.', p_now);
    END IF;
END
$$;

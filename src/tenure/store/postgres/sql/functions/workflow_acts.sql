-- What people and time do to workflows: cancel, retry, answers to escalations, deadlines. SQLite: workflow_acts.py.

-- cancel_workflow, retry_workflow: {"id", "actor", "reason"} → its row.
CREATE OR REPLACE FUNCTION tenure.cancel_workflow(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_run tenure.workflow := tenure.lock_workflow(p_request ->> 'id');
BEGIN
    IF v_run.state IN ('completed', 'failed') THEN
        RAISE EXCEPTION 'Workflow % is %, so there is nothing to cancel.', v_run.id, v_run.state USING ERRCODE = 'TN008';
    END IF;
    IF v_run.state <> 'cancelled' THEN
        PERFORM tenure.write_audit(v_now, p_request ->> 'actor', 'cancel_workflow', v_run.id::text, p_request ->> 'reason',
            json_build_object('state', v_run.state));
        PERFORM tenure.stop_workflow(v_run.id, 'cancelled', format('cancelled by %s: %s', p_request ->> 'actor', p_request ->> 'reason'), v_now);
        PERFORM tenure.fold_workflows(500, v_now, v_run.id);
    END IF;
    RETURN (SELECT tenure.show_workflow(w) FROM tenure.workflow AS w WHERE w.id = v_run.id);
END
$$;

CREATE OR REPLACE FUNCTION tenure.retry_workflow(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_run tenure.workflow := tenure.lock_workflow(p_request ->> 'id');
BEGIN
    IF v_run.state = 'cancelled' OR v_run.phase IN ('loading', 'retrying') THEN
        RAISE EXCEPTION 'Workflow % %, so it cannot be retried. Nothing was changed.', v_run.id,
            CASE v_run.state WHEN 'cancelled' THEN 'was cancelled' ELSE 'is ' || v_run.phase END USING ERRCODE = 'TN008';
    END IF;
    IF v_run.state = 'failed' AND v_run.policy -> 'undo' IS NOT NULL THEN
        RAISE EXCEPTION 'Workflow % failed and what had succeeded is undone, so it cannot be retried. Start it anew. Nothing was changed.',
            v_run.id USING ERRCODE = 'TN008';
    END IF;
    IF v_run.state IN ('running', 'completed') AND v_run.failed = 0 AND v_run.tolerated = 0 AND v_run.cancelled = 0 THEN
        RAISE EXCEPTION 'No task of workflow % has failed, so there is nothing to retry. Nothing was changed.', v_run.id USING ERRCODE = 'TN008';
    END IF;
    PERFORM tenure.write_audit(v_now, p_request ->> 'actor', 'retry_workflow', v_run.id::text, p_request ->> 'reason',
        json_build_object('state', v_run.state));
    PERFORM tenure.close_escalations(v_run.id, v_now);
    PERFORM tenure.begin_retry(v_run.id, v_now);
    PERFORM tenure.fold_workflows(500, v_now, v_run.id);
    RETURN (SELECT tenure.show_workflow(w) FROM tenure.workflow AS w WHERE w.id = v_run.id);
END
$$;

CREATE OR REPLACE FUNCTION tenure.lock_workflow(p_id text) RETURNS tenure.workflow
LANGUAGE plpgsql
AS $$
DECLARE
    v_run tenure.workflow;
BEGIN
    SELECT * INTO v_run FROM tenure.workflow AS w WHERE w.id = tenure.as_uuid(p_id) FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'There is no workflow %. `tenure workflows ls` lists them.', p_id USING ERRCODE = 'TN009';
    END IF;
    RETURN v_run;
END
$$;

-- answer_escalation: {"id", "answer", "actor", "note", "threshold"} → its row.
CREATE OR REPLACE FUNCTION tenure.answer_escalation(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_answer text := p_request ->> 'answer';
    v_asked tenure.escalation;
BEGIN
    IF v_answer IS NULL OR v_answer NOT IN ('go_on', 'retry_failed', 'raise_threshold', 'fail', 'cancel') THEN
        RAISE EXCEPTION 'answer is %; it may be go_on, retry_failed, raise_threshold, fail, cancel. Nothing was changed.', quote_nullable(v_answer)
            USING ERRCODE = 'TN007';
    END IF;
    IF v_answer = 'raise_threshold' AND NOT tenure.is_threshold(p_request -> 'threshold') THEN
        RAISE EXCEPTION 'raise_threshold needs the new `threshold`: a count or a share. Nothing was changed.' USING ERRCODE = 'TN007';
    END IF;
    PERFORM 1 FROM tenure.workflow AS w
    WHERE w.id = (SELECT e.workflow_id FROM tenure.escalation AS e WHERE e.id = tenure.as_uuid(p_request ->> 'id'))
    FOR UPDATE;
    SELECT * INTO v_asked FROM tenure.escalation AS e WHERE e.id = tenure.as_uuid(p_request ->> 'id');
    IF NOT FOUND THEN
        RAISE EXCEPTION 'There is no escalation %. `tenure workflows show` lists those of a workflow.', p_request ->> 'id' USING ERRCODE = 'TN009';
    END IF;
    IF v_asked.state = 'open' THEN
        PERFORM tenure.apply_answer(v_asked.id, v_answer, p_request ->> 'actor', p_request ->> 'note', p_request -> 'threshold', v_now);
        PERFORM tenure.fold_workflows(500, v_now, v_asked.workflow_id);
    ELSIF v_asked.state <> 'answered' OR v_asked.answer <> v_answer THEN
        RAISE EXCEPTION 'Escalation % %, so this answer came too late. Nothing was changed.', v_asked.id, CASE v_asked.state
            WHEN 'answered' THEN format('was answered with %L by %s', v_asked.answer, v_asked.answered_by) ELSE 'is ' || v_asked.state END
            USING ERRCODE = 'TN008';
    END IF;
    RETURN (SELECT tenure.show_escalation(e) FROM tenure.escalation AS e WHERE e.id = v_asked.id);
END
$$;

-- are_workflows_due: whether there is something to fold, or a deadline or a level of escalation is over. Takes {}.
CREATE OR REPLACE FUNCTION tenure.are_workflows_due(p_request json) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
    SELECT to_json(EXISTS (SELECT 1 FROM tenure.workflow_event)
        OR EXISTS (SELECT 1 FROM tenure.workflow AS w WHERE w.due_at <= tenure.now() AND w.state = 'running')
        OR EXISTS (SELECT 1 FROM tenure.escalation AS e WHERE e.state = 'open' AND e.due_at <= tenure.now()))
$$;

-- tend_workflows: deadlines that passed, and levels that were not answered, up to {"limit"} each → how many there were. A workflow that is
-- escalated is judged by its deadline once it goes on.
CREATE OR REPLACE FUNCTION tenure.tend_workflows(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_limit integer := coalesce((p_request ->> 'limit')::integer, 100);
    v_ids uuid[];
    v_run tenure.workflow;
    v_done integer := 0;
BEGIN
    v_ids := ARRAY(
        SELECT s.id
        FROM (
            (SELECT w.id FROM tenure.workflow AS w WHERE w.due_at <= v_now AND w.state = 'running' ORDER BY w.due_at LIMIT v_limit)
            UNION
            (SELECT e.workflow_id FROM tenure.escalation AS e WHERE e.state = 'open' AND e.due_at <= v_now ORDER BY e.due_at LIMIT v_limit)
        ) AS s
        ORDER BY s.id
    );
    FOR v_run IN SELECT w.* FROM tenure.workflow AS w WHERE w.id = ANY (v_ids) ORDER BY w.id FOR UPDATE LOOP
        BEGIN
            v_done := v_done + tenure.tend_workflow(v_run, v_now);
        EXCEPTION WHEN OTHERS THEN
            IF NOT tenure.is_refusal(SQLSTATE) THEN
                RAISE;
            END IF;
            PERFORM tenure.give_up_workflow(v_run.id, SQLERRM, v_now);
            v_done := v_done + 1;
        END;
    END LOOP;
    RETURN to_json(v_done);
END
$$;

-- tend_workflow: what is over by time in one workflow, whose row is locked. Answers how many things that were.
CREATE OR REPLACE FUNCTION tenure.tend_workflow(p_run tenure.workflow, p_now timestamptz) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    v_asked uuid;
    v_done integer := 0;
BEGIN
    IF p_run.due_at <= p_now AND p_run.state = 'running' THEN
        v_done := v_done + 1;
        UPDATE tenure.workflow AS w SET due_at = NULL WHERE w.id = p_run.id;
        PERFORM tenure.breach_workflow(p_run, 'deadline', 'the deadline has passed', p_now);
    END IF;
    FOR v_asked IN SELECT e.id FROM tenure.escalation AS e WHERE e.workflow_id = p_run.id AND e.state = 'open' AND e.due_at <= p_now LOOP
        v_done := v_done + 1;
        PERFORM tenure.pass_on(v_asked, p_now);
    END LOOP;
    RETURN v_done;
END
$$;

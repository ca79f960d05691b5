-- grant_jobs: the claiming half of an exchange. Answers {"lines": [[queue, until_us, started, [grant, …]], …], "marks", "expired", "due",
-- "waiting", "shared", "offered", "age", "news"}: how many workers want to be woken for these queues, told if nothing was granted; whether
-- others are busy with them too, told if many were; whether an enqueue may now hand a job over, which only claim_few lets it; how many
-- seconds ago the oldest of jobs that are handed out again was granted; and what beat_idle answers, if nothing was granted and the claim
-- is to be a heartbeat.
--
-- Order of work: gates, then leases that ran out are taken back, then jobs that came due are made claimable, then new work.
-- p_claim: {"worker", "queues", "limit", "kinds", "affinity", "lease", "strict", "held", "wake", "beat", "offers", "offered", "marks"}.
-- `marks` is what the last answer gave this caller: {"expired": us, "due": us, "queues": {name: [[rank, run_at_us, id], …]}}; null asks for a full look.
-- p_is_loop: a worker's loop asks, which the gates named `worker` may stop; a profile's own claim function asks without.
CREATE OR REPLACE FUNCTION tenure.grant_jobs(p_claim json, p_now timestamptz, p_is_loop boolean DEFAULT true) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_worker text := p_claim ->> 'worker';
    v_left integer := (p_claim ->> 'limit')::integer;
    v_kinds text[] := CASE WHEN p_claim -> 'kinds' IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(p_claim -> 'kinds')) END;
    v_affinity text[] := CASE WHEN p_claim -> 'affinity' IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(p_claim -> 'affinity')) END;
    v_lease double precision := (p_claim ->> 'lease')::double precision;
    v_marks json := p_claim -> 'marks';
    v_queues tenure.queue[];
    v_queue tenure.queue;
    v_others tenure.queue[];
    v_strict boolean := coalesce((p_claim ->> 'strict')::boolean, false);
    v_quota integer[];
    v_lines json[] := '{}';
    v_new_marks json[] := '{}';
    v_part record;
    v_want integer;
    v_expired json[];
    v_due timestamptz;
    v_held json := coalesce(p_claim -> 'held', CASE WHEN (p_claim ->> 'offered')::boolean THEN '[]'::json END);
    v_age double precision;
BEGIN
    v_queues := tenure.open_queues(ARRAY(SELECT json_array_elements_text(p_claim -> 'queues')), v_lease, p_is_loop);
    v_expired := tenure.expire_leases(p_now, tenure.from_us((v_marks ->> 'expired')::bigint), 1000, NULL);
    v_due := tenure.promote_due(p_now, tenure.from_us((v_marks ->> 'due')::bigint), 1000);
    IF v_held IS NOT NULL THEN  -- first of all: nothing more is handed over, and whoever did so has committed
        PERFORM tenure.withdraw_offer(v_worker, q.name) FROM json_array_elements_text(p_claim -> 'queues') AS q(name);
    END IF;
    IF p_claim -> 'wake' IS NOT NULL THEN
        PERFORM tenure.set_waiter(v_worker, p_claim -> 'queues', (p_claim ->> 'wake')::boolean);
    END IF;
    IF v_held IS NOT NULL THEN
        SELECT r.lines, r.age INTO v_lines, v_age FROM tenure.regrant(v_worker, v_held, greatest(v_left, 1), p_now) AS r;
        v_left := greatest(v_left - cardinality(v_lines), 0);
    END IF;

    -- A queue at its limit gives less than its share, and what it could not give is shared out among the others.
    LOOP
        v_quota := CASE WHEN cardinality(v_queues) > 1 AND NOT v_strict THEN tenure.share_out(v_queues, v_left, v_kinds, v_affinity) END;
        v_others := '{}';
        FOR i IN 1 .. coalesce(cardinality(v_queues), 0) LOOP
            v_queue := v_queues[i];
            v_want := least(v_left, coalesce(v_quota[i], v_left));
            IF v_want <= 0 THEN
                v_others := v_others || v_queue;
                CONTINUE;
            END IF;
            v_part := tenure.claim_marked(v_queue, v_worker, v_want, v_kinds, v_affinity, v_lease, p_now, v_marks -> 'queues' -> v_queue.name);
            IF v_part.granted > 0 THEN
                v_lines := v_lines || v_part.grants;
                v_left := v_left - v_part.granted;
                IF v_part.marks IS NOT NULL THEN
                    v_new_marks := v_new_marks || json_build_array(v_queue.name, v_part.marks);
                END IF;
            END IF;
            IF v_part.granted = v_want THEN
                v_others := v_others || v_queue;
            END IF;
        END LOOP;
        EXIT WHEN v_left <= 0 OR cardinality(v_others) IN (0, cardinality(v_queues));
        v_queues := v_others;
    END LOOP;
    RETURN json_build_object(
        'lines', array_to_json(v_lines),
        'marks', array_to_json(v_new_marks),
        'expired', CASE WHEN cardinality(v_expired) < 1000 THEN tenure.to_us(p_now) ELSE (v_marks ->> 'expired')::bigint END,
        'due', tenure.to_us(v_due),
        'waiting', CASE WHEN cardinality(v_lines) = 0 THEN (
            SELECT count(DISTINCT w.worker)
            FROM tenure.waiter AS w
            WHERE w.queue IN (SELECT json_array_elements_text(p_claim -> 'queues'))
        ) END,
        'shared', CASE WHEN cardinality(v_new_marks) > 0 THEN tenure.has_company(v_worker, p_claim -> 'queues', p_now) END,
        'offered', false,
        'age', v_age,
        'news', CASE WHEN cardinality(v_lines) = 0 AND (p_claim ->> 'beat')::boolean THEN tenure.beat_idle(v_worker, p_now) END);
END
$$;

-- has_company: whether another worker of one of these queues was seen within a minute and does not wait to be woken. Looks at a few.
CREATE OR REPLACE FUNCTION tenure.has_company(p_worker text, p_queues json, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1
        FROM (
            SELECT w.id, w.queues
            FROM tenure.worker AS w
            WHERE w.last_seen_at > p_now - interval '1 minute' AND w.id <> p_worker
            ORDER BY w.last_seen_at DESC
            LIMIT 8
        ) AS o
        WHERE o.queues && ARRAY(SELECT json_array_elements_text(p_queues))
            AND NOT EXISTS (SELECT 1 FROM tenure.waiter AS s WHERE s.worker = o.id)
    );
END
$$;

-- claim_marked: claim_queue at the marks of the last claim, rank by rank, then a full look for what is still wanting.
CREATE OR REPLACE FUNCTION tenure.claim_marked(
    p_queue tenure.queue, p_worker text, p_limit integer, p_kinds text[], p_affinity text[], p_lease double precision,
    p_now timestamptz, p_marks json, OUT grants json[], OUT granted integer, OUT marks json
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_mark json;
    v_part record;
    v_marks json[] := '{}';
    v_until bigint := tenure.to_us(p_now + coalesce(p_lease, p_queue.lease_seconds) * interval '1 second');
BEGIN
    grants := '{}';
    granted := 0;
    IF p_marks IS NOT NULL THEN
        FOR v_mark IN SELECT m.value FROM json_array_elements(p_marks) AS m ORDER BY (m.value ->> 0)::bigint LOOP
            EXIT WHEN granted >= p_limit;
            v_part := tenure.claim_queue(p_queue, p_worker, p_limit - granted, p_kinds, p_affinity, p_lease, p_now,
                (v_mark ->> 0)::bigint, tenure.from_us((v_mark ->> 1)::bigint), (v_mark ->> 2)::uuid);
            IF v_part.granted > 0 THEN
                granted := granted + v_part.granted;
                grants := grants || json_build_array(p_queue.name, v_until, p_queue.start_on_claim, v_part.grants);
                v_marks := v_marks || coalesce(v_part.marks, '[]');
            END IF;
        END LOOP;
    END IF;
    IF granted < p_limit THEN
        v_part := tenure.claim_queue(p_queue, p_worker, p_limit - granted, p_kinds, p_affinity, p_lease, p_now, NULL, NULL, NULL);
        IF v_part.granted > 0 THEN
            granted := granted + v_part.granted;
            grants := grants || json_build_array(p_queue.name, v_until, p_queue.start_on_claim, v_part.grants);
            v_marks := v_marks || coalesce(v_part.marks, '[]');
        END IF;
    END IF;
    IF granted >= 50 THEN
        marks := (SELECT json_agg(m.value) FROM unnest(v_marks) AS a(list) CROSS JOIN LATERAL json_array_elements(a.list) AS m);
    END IF;
END
$$;

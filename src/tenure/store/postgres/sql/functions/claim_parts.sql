-- The smaller steps of a claim.

-- open_queues: the rows of the queues that may be claimed from now, in the order asked for. Paused ones are left out, and so are
-- those whose own gate is closed, unless that leaves none. Refuses unknown queues, closed gates, and a lease out of bounds.
CREATE OR REPLACE FUNCTION tenure.open_queues(p_names text[], p_lease double precision, p_is_loop boolean) RETURNS tenure.queue[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_queues tenure.queue[] := '{}';
    v_queue tenure.queue;
    v_name text;
    v_closed text[];
    v_shut text;
BEGIN
    SELECT array_agg(g.name) INTO v_closed FROM tenure.gate AS g WHERE NOT g.is_open;
    FOREACH v_name IN ARRAY p_names LOOP
        SELECT * INTO v_queue FROM tenure.queue AS q WHERE q.name = v_name;
        IF NOT FOUND THEN
            PERFORM tenure.refuse_unknown_queue(v_name);
        END IF;
        IF p_lease IS NOT NULL AND (p_lease <= 0 OR p_lease > v_queue.lease_max_seconds) THEN
            RAISE EXCEPTION 'lease_seconds is %; it must be positive and at most % in queue %.',
                p_lease, v_queue.lease_max_seconds, quote_literal(v_name) USING ERRCODE = 'TN007';
        END IF;
        IF v_closed IS NOT NULL THEN
            SELECT c.name INTO v_shut
            FROM unnest(v_closed) AS c(name)
            WHERE c.name IN ('master', v_queue.profile || '.master')
                OR p_is_loop AND c.name IN ('worker', v_queue.profile || '.worker')
            ORDER BY c.name
            LIMIT 1;
            IF FOUND THEN
                PERFORM tenure.refuse_gate(v_shut, 'claim');
            END IF;
            IF 'queue:' || v_name = ANY (v_closed) THEN
                v_shut := 'queue:' || v_name;
                CONTINUE;
            END IF;
        END IF;
        IF v_queue.paused_at IS NULL THEN
            v_queues := v_queues || v_queue;
        END IF;
    END LOOP;
    IF v_shut IS NOT NULL AND cardinality(v_queues) = 0 THEN
        PERFORM tenure.refuse_gate(v_shut, 'claim');
    END IF;
    RETURN v_queues;
END
$$;

-- share_out: how many jobs each of several queues should give, if the next p_limit were taken by rank over all of them.
-- Looks without locking; the claim then takes that many from each, skipping what others hold.
CREATE OR REPLACE FUNCTION tenure.share_out(p_queues tenure.queue[], p_limit integer, p_kinds text[], p_affinity text[]) RETURNS integer[]
LANGUAGE sql STABLE
AS $$
    WITH best AS (
        SELECT q.nth
        FROM unnest(p_queues) WITH ORDINALITY AS q(
            name, profile, priority_order, priority_default, aging_seconds, start_on_claim, max_attempts, backoff_shape,
            backoff_base_seconds, backoff_power, backoff_factor, backoff_cap_seconds, backoff_jitter, lease_seconds,
            lease_max_seconds, key_scope, key_space, key_required, key_window_seconds, key_conflict, revive, on_unknown_kind,
            forbidden_keys, concurrency, concurrency_per_key, retain_seconds, events, paused_at, paused_by, created_at, updated_at, nth)
        CROSS JOIN LATERAL (
            SELECT j.rank, j.run_at, j.id
            FROM tenure.job AS j
            WHERE j.queue = q.name AND j.state = 'queued' AND j.is_due
                AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
                AND (p_affinity IS NULL OR j.affinity_key = ANY (p_affinity)
                    OR (j.affinity_key IS NULL AND array_position(p_affinity, NULL) IS NOT NULL))
            ORDER BY j.rank, j.run_at, j.id
            LIMIT p_limit
        ) AS head
        ORDER BY head.rank, head.run_at, head.id
        LIMIT p_limit
    )
    SELECT array_agg((SELECT count(*)::integer FROM best AS b WHERE b.nth = n.nth) ORDER BY n.nth)
    FROM generate_series(1, cardinality(p_queues)) AS n(nth)
$$;

-- promote_due: make jobs claimable whose time has come; suspended ones with a time to wake among them. Bounded.
-- p_after: everything before it was looked at already. Answers up to where everything has been looked at now.
CREATE OR REPLACE FUNCTION tenure.promote_due(p_now timestamptz, p_after timestamptz, p_limit integer) RETURNS timestamptz
LANGUAGE plpgsql
AS $$
DECLARE
    v_at tid[];
    v_last timestamptz;
    v_woken uuid[];
    v_queues text[];
BEGIN
    SELECT array_agg(d.at), max(d.run_at), array_agg(d.id) FILTER (WHERE d.state = 'waiting'), array_agg(DISTINCT d.queue)
    INTO v_at, v_last, v_woken, v_queues
    FROM (
        SELECT j.ctid AS at, j.run_at, j.id, j.state, j.queue
        FROM tenure.job AS j
        WHERE NOT j.is_due AND j.state IN ('queued', 'waiting')
            AND j.run_at <= p_now AND j.run_at >= coalesce(p_after, '-infinity')
        ORDER BY j.run_at
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ) AS d;
    IF v_at IS NOT NULL THEN
        UPDATE tenure.job AS j
        SET is_due = true,
            state = 'queued',
            waiting_for = NULL,
            updated_at = p_now
        WHERE j.ctid = ANY (v_at);
        IF v_woken IS NOT NULL THEN
            PERFORM tenure.tell('woken', v_woken, p_now);
        END IF;
        -- Whoever looked first takes what it has room for. The rest of the fleet would see the others only at its next poll.
        PERFORM tenure.notify(q, NULL) FROM tenure.queue AS q WHERE q.name = ANY (v_queues);
    END IF;
    RETURN CASE WHEN cardinality(v_at) >= p_limit THEN v_last - interval '1 microsecond' ELSE p_now END;
END
$$;

-- set_waiter: whether the worker wants to be woken when jobs arrive in these queues.
CREATE OR REPLACE FUNCTION tenure.set_waiter(p_worker text, p_queues json, p_wants boolean) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_wants THEN
        INSERT INTO tenure.waiter (queue, worker)
        SELECT q.name, p_worker FROM json_array_elements_text(p_queues) AS q(name)
        ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM tenure.waiter AS w
        WHERE w.worker = p_worker AND w.queue IN (SELECT q.name FROM json_array_elements_text(p_queues) AS q(name));
    END IF;
END
$$;

-- regrant: jobs leased to this worker that it does not know of, because the reply to its claim was lost, or the word of an enqueue that had
-- handed one over. Same token, lease as it is; and how many seconds ago the oldest was granted.
CREATE OR REPLACE FUNCTION tenure.regrant(
    p_worker text, p_held json, p_limit integer, p_now timestamptz, OUT lines json[], OUT age double precision
)
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(array_agg(json_build_array(h.queue, tenure.to_us(h.lease_until), h.state = 'running', json_build_array(
        json_build_array(h.id, h.kind, h.token, h.attempt, h.max_attempts, h.payload::text, h.priority, h.crashes, h.rank, tenure.to_us(h.run_at), NULL)))), '{}'),
        date_part('epoch', p_now - min(h.claimed_at))
    FROM (
        SELECT j.*
        FROM tenure.job AS j
        WHERE j.state IN ('leased', 'running') AND j.lease_owner = p_worker
            AND j.lease_until > tenure.expiry_cutoff(p_now)
            AND NOT j.id IN (SELECT k.id::uuid FROM json_array_elements_text(p_held) AS k(id))
        ORDER BY j.rank, j.run_at, j.id
        LIMIT p_limit
    ) AS h
$$;

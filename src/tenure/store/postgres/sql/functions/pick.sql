-- pick: lock the next claimable rows of a queue, in order, skipping what others hold. Answers where they are, null if there are none.
-- Each shape of the look is a statement of its own, so that each keeps the plan it needs.
CREATE OR REPLACE FUNCTION tenure.pick(
    p_queue tenure.queue, p_limit integer, p_kinds text[], p_affinity text[],
    p_mark_rank bigint, p_mark_run_at timestamptz, p_mark_id uuid
) RETURNS tid[]
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_queue.concurrency IS NOT NULL OR p_queue.concurrency_per_key IS NOT NULL THEN
        RETURN tenure.pick_limited(p_queue, p_limit, p_kinds, p_affinity);
    ELSIF p_mark_rank IS NOT NULL THEN
        RETURN (SELECT array_agg(p.at) FROM (
            SELECT j.ctid AS at
            FROM tenure.job AS j
            WHERE j.queue = p_queue.name AND j.state = 'queued' AND j.is_due
                AND j.rank = p_mark_rank AND (j.run_at, j.id) > (p_mark_run_at, p_mark_id)
            ORDER BY j.run_at, j.id
            LIMIT p_limit
            FOR UPDATE SKIP LOCKED
        ) AS p);
    ELSIF p_kinds IS NULL AND p_affinity IS NULL THEN
        RETURN (SELECT array_agg(p.at) FROM (
            SELECT j.ctid AS at
            FROM tenure.job AS j
            WHERE j.queue = p_queue.name AND j.state = 'queued' AND j.is_due
            ORDER BY j.rank, j.run_at, j.id
            LIMIT p_limit
            FOR UPDATE SKIP LOCKED
        ) AS p);
    END IF;
    RETURN (SELECT array_agg(p.at) FROM (
        SELECT j.ctid AS at
        FROM tenure.job AS j
        WHERE j.queue = p_queue.name AND j.state = 'queued' AND j.is_due
            AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
            AND (p_affinity IS NULL OR j.affinity_key = ANY (p_affinity)
                OR (j.affinity_key IS NULL AND array_position(p_affinity, NULL) IS NOT NULL))
        ORDER BY j.rank, j.run_at, j.id
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ) AS p);
END
$$;

-- pick_limited: the same under a limit on how many jobs of the queue, or with one concurrency key, may be held at once.
-- Exact across machines: whoever picks from such a queue holds its advisory lock until the commit, so counts cannot cross.
-- Looks at the first 5,000 claimable rows; a key whose jobs fill them all lets the rest wait until it has room.
CREATE OR REPLACE FUNCTION tenure.pick_limited(p_queue tenure.queue, p_limit integer, p_kinds text[], p_affinity text[]) RETURNS tid[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_room bigint := p_limit;
    v_ids uuid[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('tenure.queue:' || p_queue.name, 0));
    IF p_queue.concurrency IS NOT NULL THEN
        SELECT least(p_limit, p_queue.concurrency - count(*)) INTO v_room
        FROM tenure.job AS j
        WHERE j.state IN ('leased', 'running') AND j.queue = p_queue.name;
        IF v_room <= 0 THEN
            RETURN NULL;
        END IF;
    END IF;
    WITH held AS MATERIALIZED (
        SELECT j.concurrency_key, count(*) AS jobs
        FROM tenure.job AS j
        WHERE j.state IN ('leased', 'running') AND j.queue = p_queue.name AND j.concurrency_key IS NOT NULL
        GROUP BY j.concurrency_key
    ), due AS MATERIALIZED (
        SELECT j.id, j.concurrency_key, j.rank, j.run_at
        FROM tenure.job AS j
        WHERE j.queue = p_queue.name AND j.state = 'queued' AND j.is_due
            AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
            AND (p_affinity IS NULL OR j.affinity_key = ANY (p_affinity)
                OR (j.affinity_key IS NULL AND array_position(p_affinity, NULL) IS NOT NULL))
        ORDER BY j.rank, j.run_at, j.id
        LIMIT 5000
    ), turn AS MATERIALIZED (
        SELECT d.*, row_number() OVER (PARTITION BY d.concurrency_key ORDER BY d.rank, d.run_at, d.id) AS nth FROM due AS d
    )
    SELECT array_agg(f.id) INTO v_ids FROM (
        SELECT t.id
        FROM turn AS t
        LEFT JOIN held AS h ON h.concurrency_key = t.concurrency_key
        WHERE t.concurrency_key IS NULL
            OR p_queue.concurrency_per_key IS NULL
            OR t.nth + coalesce(h.jobs, 0) <= p_queue.concurrency_per_key
        ORDER BY t.rank, t.run_at, t.id
        LIMIT v_room
    ) AS f;
    IF v_ids IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT array_agg(p.at) FROM (
        SELECT j.ctid AS at FROM tenure.job AS j WHERE j.id = ANY (v_ids) AND j.state = 'queued' FOR UPDATE SKIP LOCKED
    ) AS p);
END
$$;

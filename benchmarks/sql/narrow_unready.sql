DELETE FROM bare_ready
WHERE (queue, rank, run_at, id) IN (
    SELECT queue, rank, run_at, id FROM bare_ready WHERE queue = 'bench' ORDER BY rank, run_at, id LIMIT :limit
);

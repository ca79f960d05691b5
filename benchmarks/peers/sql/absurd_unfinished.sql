-- absurd keeps one task table per queue: t_<queue>.
SELECT count(*)
FROM absurd.t_bench
WHERE state NOT IN ('completed', 'failed', 'cancelled');

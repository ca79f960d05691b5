SELECT count(*)
FROM absurd.t_bench
WHERE state = 'completed';

-- pg-boss: created, retry and active come before completed in its enum.
SELECT count(*)
FROM pgboss.job
WHERE state < 'completed';

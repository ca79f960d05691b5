-- graphile-worker deletes a job when it is done.
SELECT count(*)
FROM graphile_worker._private_jobs;

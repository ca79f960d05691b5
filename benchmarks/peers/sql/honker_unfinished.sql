-- honker deletes a job when it is acknowledged.
SELECT count(*)
FROM _honker_live;

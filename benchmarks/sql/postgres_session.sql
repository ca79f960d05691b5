-- A ceiling must not depend on the planner's mood: by the key, row by row, whatever the statistics say.
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_seqscan = off;
SET jit = off;

-- A whole job life with nothing but psql and the role tenure_worker, under the profile `substrate`:
--
--     tenure profile install substrate --url "$TENURE_URL"
--     tenure gates open substrate.master && tenure gates open substrate.heartbeat
--     psql "$TENURE_URL" -v ON_ERROR_STOP=1 -f examples/psql_worker.sql
--
-- Each step shows what it was told. Nothing here is special to psql: any client that can call a function can be a worker.
\set owner 'psql-' :BACKEND_PID

\echo '# enqueue, and once more under the same key: a duplicate'
SELECT substrate.fn_job_enqueue('index_unit', 'unit-7', 'ada', '{"unit": 7}', p_max_attempts => 3) ->> 'duplicate' AS duplicate;
SELECT substrate.fn_job_enqueue('index_unit', 'unit-7', 'ada', '{"unit": 7}') ->> 'duplicate' AS duplicate;

\echo '# claim: the job with its token'
SELECT j ->> 'job_id' AS job, j ->> 'token' AS token, j ->> 'state' AS state
FROM (SELECT substrate.fn_job_claim(:'owner') -> 'job' AS j) AS claimed
\gset
\echo :state

\echo '# heartbeat: in progress, with a longer lease'
SELECT substrate.fn_queue_heartbeat_tick(:'owner', 'PG_worker', 'ok', :'job', :'owner', p_token => :token) ->> 'ok' AS beats;

\echo '# fail: it waits, here for no time at all'
SELECT substrate.fn_job_fail_or_retry(:'job', :'owner', 'unit 7 is locked', 0, :token) ->> 'state' AS state;

\echo '# claim again: the next token'
SELECT substrate.fn_job_claim(:'owner') -> 'job' ->> 'token' AS next \gset
\echo :next

\echo '# the old token is worth nothing, the new one settles'
SELECT substrate.fn_job_ack(:'job', :'owner', NULL, :token) ->> 'error' AS error;
SELECT substrate.fn_job_ack(:'job', :'owner', '{"rows": 3}', :next) ->> 'state' AS state;

\echo '# another one is beyond help: dead letter'
SELECT substrate.fn_job_enqueue('index_unit', 'unit-8', 'ada', '{"unit": 8}') ->> 'job_id' AS job \gset
SELECT substrate.fn_job_claim(:'owner') -> 'job' ->> 'token' AS token \gset
SELECT substrate.fn_job_move_to_dead_letter(:'job', 'unit 8 cannot be read', :'owner', :token) ->> 'state' AS state;

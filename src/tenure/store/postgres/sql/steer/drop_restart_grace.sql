-- drop_restart_grace: no lease is spared after a server's start. For a server of a test's or a demo's own.
CREATE OR REPLACE FUNCTION tenure.restart_grace() RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT interval '0 seconds' $$

-- install: for a test's own database only. From now on tenure.now() reads a table that the test moves, and no grace is
-- given after a server's start, because a test's server has always just started.

CREATE TABLE tenure.test_clock (at timestamptz NOT NULL);

INSERT INTO tenure.test_clock (at) VALUES (tenure.from_us(%(now_us)s));

GRANT SELECT ON tenure.test_clock TO PUBLIC;

CREATE OR REPLACE FUNCTION tenure.now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL UNSAFE
AS $$ SELECT at FROM tenure.test_clock $$;

CREATE OR REPLACE FUNCTION tenure.restart_grace() RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT interval '0 seconds' $$;

-- to_us, from_us: moments on the wire are whole microseconds since 1970, exact both ways.
-- 'infinity' is the largest bigint, '-infinity' the smallest. STABLE, not IMMUTABLE: only so can the planner inline them.

CREATE OR REPLACE FUNCTION tenure.to_us(p_at timestamptz) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_at = 'infinity'::timestamptz THEN 9223372036854775807
        WHEN p_at = '-infinity'::timestamptz THEN -9223372036854775808
        ELSE (EXTRACT(epoch FROM p_at) * 1000000)::bigint
    END
$$;

CREATE OR REPLACE FUNCTION tenure.from_us(p_us bigint) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_us = 9223372036854775807 THEN 'infinity'::timestamptz
        WHEN p_us = -9223372036854775808 THEN '-infinity'::timestamptz
        -- In two parts: an interval is multiplied as a double, which holds no more than 53 bits exactly.
        ELSE 'epoch'::timestamptz + p_us / 3600000000 * interval '1 hour' + p_us % 3600000000 * interval '1 microsecond'
    END
$$;

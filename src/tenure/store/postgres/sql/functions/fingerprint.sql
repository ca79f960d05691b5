-- fingerprint: sixteen hex digits, the same for failures that differ only in numbers, ids and addresses.
-- The rule is tenure.model.fingerprint's; a test holds the two together.
CREATE OR REPLACE FUNCTION tenure.fingerprint(p_class text, p_error text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT pg_catalog.substr(
        pg_catalog.md5(
            p_class || '|' || pg_catalog.regexp_replace(
                pg_catalog.left(pg_catalog.lower(pg_catalog.split_part(coalesce(p_error, ''), E'\n', 1) COLLATE "C"), 500),
                '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|0x[0-9a-f]+|[0-9]+', '#', 'g'
            )
        ),
        1, 16
    )
$$;

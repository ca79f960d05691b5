-- now_us: the store's clock for clients that want to read it.
CREATE OR REPLACE FUNCTION tenure.now_us() RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT tenure.to_us(tenure.now()) $$;

-- schema_version: the newest migration in this database. A function, because the roles may not read the ledger itself.
CREATE OR REPLACE FUNCTION tenure.schema_version() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$ SELECT coalesce(max(m.number), 0) FROM tenure.migration AS m $$;

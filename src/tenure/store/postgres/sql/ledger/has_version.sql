SELECT pg_catalog.to_regprocedure('tenure.schema_version()') IS NOT NULL;

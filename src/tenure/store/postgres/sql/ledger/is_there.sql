SELECT pg_catalog.to_regclass('tenure.migration') IS NOT NULL;

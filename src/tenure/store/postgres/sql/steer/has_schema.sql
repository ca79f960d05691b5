-- has_schema: whether there is a schema of ours.
SELECT to_regnamespace('tenure') IS NOT NULL

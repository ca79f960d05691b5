-- functions_found: whether our functions were added to this connection before.
SELECT 1 FROM pragma_function_list WHERE name = 'tenure_fingerprint' LIMIT 1;

-- gate_found: whether a gate was ever touched.
SELECT 1 FROM tenure_gate WHERE name = ?;

-- quiet_gates: whether any gate that switches wake-ups off is closed.
SELECT 1 FROM tenure_gate WHERE is_open = 0 AND (name = 'notify' OR name LIKE '%.notify') LIMIT 1;

-- queue_names: every queue's name.
SELECT name FROM tenure_queue ORDER BY name;

-- inspect_jobs: when the newest job was made, and the highest event number.
SELECT (SELECT created_at FROM tenure_job ORDER BY id DESC LIMIT 1), coalesce((SELECT max(seq) FROM tenure_event), 0);

INSERT INTO bare_job (id, queue, kind, rank, run_at, created_at, updated_at, payload)
VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?5, ?6);

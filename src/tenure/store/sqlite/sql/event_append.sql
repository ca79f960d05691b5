-- event_append: one event.
INSERT INTO tenure_event (at, kind, job_id, queue, data)
VALUES (:now, :kind, :job_id, (SELECT queue FROM tenure_job WHERE id = :job_id), :data);

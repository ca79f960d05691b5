CREATE INDEX bare_finished_idx ON bare_job (finished_at) WHERE finished_at IS NOT NULL;

-- worker_beat: a worker's own row, seen now.
INSERT INTO tenure_worker (
    id, hostname, pid, queues, kinds, concurrency, version, executor_kind, status, ticks, current_job_id, info, started_at,
    last_seen_at
)
VALUES (
    :id, :hostname, :pid, :queues, :kinds, :concurrency, :version, :executor_kind, :status, 1, :current_job_id, :info, :now, :now
)
ON CONFLICT (id) DO UPDATE
SET hostname = excluded.hostname,
    pid = excluded.pid,
    queues = excluded.queues,
    kinds = excluded.kinds,
    concurrency = excluded.concurrency,
    version = excluded.version,
    executor_kind = excluded.executor_kind,
    status = excluded.status,
    ticks = ticks + 1,
    current_job_id = excluded.current_job_id,
    info = excluded.info,
    last_seen_at = excluded.last_seen_at;

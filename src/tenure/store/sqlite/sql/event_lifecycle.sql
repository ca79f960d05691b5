-- event_lifecycle: what happened to jobs, for those queues that ask for it. Runs after the move, so it tells where the job stands now.
INSERT INTO tenure_event (at, kind, job_id, queue, data)
SELECT :now,
    :kind,
    j.id,
    j.queue,
    json_object('state', j.state, 'attempt', j.attempt, 'token', j.token, 'kind', j.kind, 'worker', j.lease_owner,
        'class', CASE WHEN :kind IN ('retried', 'reclaimed', 'failed', 'dead', 'cancelled') THEN j.failure_class END)
FROM json_each(:ids) AS moved
CROSS JOIN tenure_job AS j ON j.id = moved.value
CROSS JOIN tenure_queue AS q ON q.name = j.queue AND q.events = 1
ORDER BY moved.key;

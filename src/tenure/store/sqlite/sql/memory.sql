-- Agent events, memories, and the searches over them.

-- name: event_keep
-- What agents did with jobs that just ended, for those queues that keep it. Facts only: texts stay with the job.
INSERT INTO tenure_agent_event (at, agent, kind, job_id, workflow_id, tenant, data)
SELECT :now, j.queue, :kind, j.id, j.workflow_id, j.tenant,
    json_patch('{}', json_object(
        'task', j.kind,
        'attempt', j.attempt,
        'token', j.token,
        'class', CASE WHEN :kind <> 'completed' THEN j.failure_class END,
        'seconds', (:now - j.claimed_at) / 1e6,
        'cost_usd', CASE WHEN json_type(j.result, '$.costUsd') IN ('integer', 'real') THEN json_extract(j.result, '$.costUsd') END
    ))
FROM json_each(:ids) AS ended
CROSS JOIN tenure_job AS j ON j.id = ended.value
CROSS JOIN tenure_queue AS q ON q.name = j.queue AND (q.agent_events = 'ends' OR q.agent_events = 'completed' AND :kind = 'completed')
ORDER BY ended.key
RETURNING id, job_id, tenant, data ->> 'token';

-- name: event_write
-- One event that a program notes. A key that is there keeps its first event.
INSERT INTO tenure_agent_event (at, agent, kind, job_id, workflow_id, tenant, key, data)
VALUES (:now, :agent, :kind, :job_id, :workflow_id, :tenant, :key, :data)
ON CONFLICT (key) DO NOTHING
RETURNING id;

-- name: event_by_key
-- The event of a key.
SELECT id FROM tenure_agent_event WHERE key = ?;

-- name: events
-- Agent events, newest first.
SELECT id, at, agent, kind, job_id, workflow_id, tenant, key, data
FROM tenure_agent_event
WHERE (:agents IS NULL OR agent IN (SELECT value FROM json_each(:agents)))
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
    AND (:job_id IS NULL OR job_id = :job_id)
    AND (:before IS NULL OR id < :before)
ORDER BY id DESC
LIMIT :limit;

-- name: event_sources
-- Agent events with what their jobs say now.
SELECT e.id, e.at, e.agent, e.kind, e.job_id, e.workflow_id, e.tenant, e.key, e.data,
    j.kind, j.payload, j.result, j.result_summary, j.last_error
FROM json_each(:ids) AS asked
CROSS JOIN tenure_agent_event AS e ON e.id = asked.value
LEFT JOIN tenure_job AS j ON j.id = e.job_id
ORDER BY e.id;

-- name: unremembered
-- Events without a memory, among the next so many.
SELECT e.id
FROM (SELECT id FROM tenure_agent_event WHERE id > :after ORDER BY id LIMIT :limit) AS e
WHERE NOT EXISTS (SELECT 1 FROM tenure_memory AS m WHERE m.agent_event_id = e.id)
ORDER BY e.id;

-- name: memory_there
-- The memory of an id or of an event.
SELECT id, text_hash, model, agent, kind, tenant, agent_event_id, job_id, workflow_id, meta, at, expires_at
FROM tenure_memory
WHERE id = :id OR agent_event_id = :agent_event_id;

-- name: memory_remove
-- One memory goes.
DELETE FROM tenure_memory WHERE id = ?;

-- name: memory_write
-- One memory. What replaces another gets a new number, so that readers of vectors see it.
INSERT INTO tenure_memory (
    id, tenant, agent, kind, agent_event_id, job_id, workflow_id, text, text_hash, model, dim, vec, meta, at, expires_at
)
VALUES (
    :id, :tenant, :agent, :kind, :agent_event_id, :job_id, :workflow_id, :text, :text_hash, :model, :dim, :vec, :meta, :at, :expires_at
);

-- name: find_words
-- Memories with one of the words, best first. The scope is looked at in the table, row by row of those that match.
SELECT m.id
FROM tenure_memory_words AS w
CROSS JOIN tenure_memory AS m ON m.seq = w.rowid
WHERE tenure_memory_words MATCH :words
    AND (:agents IS NULL OR m.agent IN (SELECT value FROM json_each(:agents)))
    AND (:kinds IS NULL OR m.kind IN (SELECT value FROM json_each(:kinds)))
    AND (:tenant IS NULL OR m.tenant = :tenant)
    AND (m.expires_at IS NULL OR m.expires_at > :now)
ORDER BY bm25(tenure_memory_words), m.seq DESC
LIMIT :limit;

-- name: vectors
-- Vectors of a model above a mark, without those whose time is over.
SELECT seq, id, agent, kind, tenant, vec
FROM tenure_memory INDEXED BY memory_vector_idx
WHERE model = :model AND model IS NOT NULL AND seq > :after AND (expires_at IS NULL OR expires_at > :now)
ORDER BY seq
LIMIT :limit;

-- name: memories
-- Memories by id (a JSON array) that have not expired.
SELECT id, at, agent, kind, text, model, tenant, agent_event_id, job_id, workflow_id, meta, expires_at
FROM tenure_memory
WHERE id IN (SELECT value FROM json_each(:ids)) AND (expires_at IS NULL OR expires_at > :now);

-- name: memories_of_others
-- Memories that another model embedded, or none.
SELECT id, at, agent, kind, text, model, tenant, agent_event_id, job_id, workflow_id, meta, expires_at
FROM tenure_memory
WHERE model IS NOT :model AND (:after IS NULL OR id > :after) AND (expires_at IS NULL OR expires_at > :now)
ORDER BY id
LIMIT :limit;

-- name: forget
-- Memories that go.
DELETE FROM tenure_memory
WHERE seq IN (
    SELECT seq
    FROM tenure_memory
    WHERE (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
        AND (:agents IS NULL OR agent IN (SELECT value FROM json_each(:agents)))
        AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
        AND (:tenant IS NULL OR tenant = :tenant)
        AND (:before IS NULL OR at < :before)
    LIMIT :limit
);

-- name: expire
-- Memories whose time is over, the longest ago first.
DELETE FROM tenure_memory
WHERE seq IN (SELECT seq FROM tenure_memory WHERE expires_at <= :now ORDER BY expires_at LIMIT :limit);

-- name: counts
-- How many memories each agent has of each model.
SELECT agent, model, count(*), min(at), max(at)
FROM tenure_memory
WHERE expires_at IS NULL OR expires_at > :now
GROUP BY agent, model
ORDER BY agent, model;

-- name: event_counts
-- How many agent events there are, and how many of them have a memory.
SELECT (SELECT count(*) FROM tenure_agent_event),
    (SELECT count(*) FROM tenure_memory WHERE agent_event_id IN (SELECT id FROM tenure_agent_event));

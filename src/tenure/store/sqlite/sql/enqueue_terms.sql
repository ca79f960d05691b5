-- enqueue_terms: on what terms a queue takes a job of this kind and priority. Read once for all jobs of a batch that share them.
-- rank: what the claim sorts by, lower first. With aging, one step of priority is worth that many seconds of waiting, and the moment
-- of creation is added to it.
-- slot: the beginning of the dedup slot, to which the key is added; NULL where keys don't deduplicate.
-- It gives the length of the kind, so that no kind and key can be read as another kind and key.
SELECT q.profile,
    coalesce(:priority, q.priority_default) AS priority,
    CAST(
        CASE q.priority_order WHEN 'high' THEN -1 ELSE 1 END * coalesce(:priority, q.priority_default)
        * coalesce(1000000 * q.aging_seconds, 1) AS INTEGER
    ) AS rank,
    coalesce(:max_attempts, q.max_attempts) AS max_attempts,
    CASE
        WHEN q.key_scope <> 'none' THEN
            substr(q.key_scope, 1, 1) || '|' || q.profile || char(31)
            || CASE q.key_space WHEN 'kind' THEN length(:kind) || char(31) || :kind ELSE '' END || char(31)
    END AS slot,
    q.key_required,
    q.key_conflict,
    CASE q.key_scope WHEN 'window' THEN CAST(1000000 * q.key_window_seconds AS INTEGER) END AS window,
    q.forbidden_keys,
    (
        SELECT min(g.name)
        FROM tenure_gate AS g
        WHERE g.is_open = 0 AND g.name IN ('master', q.profile || '.master', 'queue:' || q.name)
    ) AS closed_gate,
    q.aging_seconds IS NOT NULL AS ages,
    q.key_required = 0 AND q.forbidden_keys IS NULL AS is_plain
FROM tenure_queue AS q
WHERE q.name = :queue;

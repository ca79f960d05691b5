-- may_drop: whether this role may read and delete where a queue leaves rows.
SELECT bool_and(has_table_privilege('tenure.' || t.name, 'SELECT') AND has_table_privilege('tenure.' || t.name, 'DELETE'))
FROM unnest(
    ARRAY['queue', 'job', 'attempt', 'dead_letter', 'effect', 'event', 'metric', 'tally', 'worker', 'waiter']
) AS t (name)

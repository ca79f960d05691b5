-- profiles: those that are installed here, by name, with their queues.
SELECT name, title, words, settings, shows,
    (
        SELECT json_group_array(q.name)
        FROM (SELECT name FROM tenure_queue WHERE tenure_queue.profile = tenure_profile.name ORDER BY name) AS q
    ) AS queues,
    checksum, actor, installed_at, updated_at
FROM tenure_profile
ORDER BY name;

-- queue_profile: the profile of a queue.
SELECT profile FROM tenure_queue WHERE name = ?;

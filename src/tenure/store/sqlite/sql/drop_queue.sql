-- drop_queue: the queue itself, once it is empty.
DELETE FROM tenure_queue WHERE name = :name;

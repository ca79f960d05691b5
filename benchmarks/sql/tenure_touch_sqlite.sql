-- A write that changes nothing but the file: other connections drop what they have cached of it.
UPDATE tenure_queue SET updated_at = updated_at WHERE name = 'default'

-- schedule_remove: forget a schedule. Jobs it made stay.
DELETE FROM tenure_schedule WHERE name = ?;

-- drop_schema: remove everything that a test made.
DROP SCHEMA IF EXISTS tenure CASCADE

-- drop_look: how many jobs of other kinds are in a queue.
SELECT count(*) FROM tenure_job WHERE queue = :name AND kind <> :kind;

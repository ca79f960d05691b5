"""Effect: what jobs do to the world outside the database, done so that a crash, a late worker or a hostile
child cannot leave it torn. Files beneath a root, child processes in a sandbox, guarded HTTP, redaction.
Nothing here knows an engine or a worker; whoever holds the lease hands in `check`."""

"""The process that runs jobs: fetch, run, settle, and the lease that is held meanwhile.

Knows the store's contract, never an engine. `worker.Worker` puts the parts together; each part has one file.
"""

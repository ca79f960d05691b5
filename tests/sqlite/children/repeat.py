"""Enqueues jobs, each up to three times until it is accepted, as callers do after `unavailable`. Prints the id of each
that was accepted."""

from __future__ import annotations

import sys

from tenure.errors import TenureError
from tenure.model.ids import new_job_id
from tenure.model.job import NewJob
from tenure.store.contract import Enqueue
from tenure.store.sqlite.store import SqliteStore

store = SqliteStore(sys.argv[1])
for _ in range(int(sys.argv[2])):
    job = NewJob(new_job_id(), "work")
    for _ in range(3):
        try:
            store.do(Enqueue([job]))
        except TenureError:
            continue
        print(job.id, flush=True)
        break

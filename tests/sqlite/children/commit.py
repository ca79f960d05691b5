"""Enqueues one job after the other and says what became of each: `ok ID` or the error's code."""

from __future__ import annotations

import sys

from tenure.errors import TenureError
from tenure.model.ids import new_job_id
from tenure.model.job import NewJob
from tenure.store.contract import Enqueue
from tenure.store.sqlite.store import SqliteStore

store = SqliteStore(sys.argv[1])
for _ in range(int(sys.argv[2])):
    job_id = new_job_id()
    try:
        store.do(Enqueue([NewJob(job_id, "work")]))
        print("ok", job_id, flush=True)
    except TenureError as exc:
        print(exc.code, job_id, flush=True)
store.close()

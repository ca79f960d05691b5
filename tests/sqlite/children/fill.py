"""Enqueues until the disk is full, and tells how many were accepted and the codes of three refusals."""

from __future__ import annotations

import resource
import sys

from tenure.errors import TenureError
from tenure.model.ids import new_job_id
from tenure.model.job import NewJob
from tenure.store.contract import Enqueue
from tenure.store.queries import CountJobs
from tenure.store.sqlite.store import SqliteStore

store = SqliteStore(sys.argv[1])
store.migrate()
limit = int(sys.argv[2])
if "wait" in sys.argv:
    print("ready", flush=True)
    sys.stdin.readline()
if limit:
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

payload = '{"text": "' + "x" * 4000 + '"}'
acknowledged = 0
codes: list[str] = []
while len(codes) < 3:
    try:
        store.do(Enqueue([NewJob(new_job_id(), "work", payload) for _ in range(5)]))
        acknowledged += 5
    except TenureError as exc:
        codes.append(exc.code)
    if acknowledged > 100_000:
        break
print(acknowledged, *codes, flush=True)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.do(Enqueue([NewJob(new_job_id(), "work", payload) for _ in range(5)]))
    acknowledged += 5
print(acknowledged, sum(count.jobs for count in store.do(CountJobs())), flush=True)
store.close()

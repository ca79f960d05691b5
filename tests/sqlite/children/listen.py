"""Subscribes to the default queue of a file and claims at each wake-up. Prints `ready`, then a line per job, its id."""

from __future__ import annotations

import sys
import threading

from tenure.model.ids import WorkerId
from tenure.store.contract import Claim
from tenure.store.sqlite.store import SqliteStore

store = SqliteStore(sys.argv[1])
woken = threading.Event()
subscription = store.subscribe(["default"], woken.set)
print("ready", flush=True)
while woken.wait(30):
    woken.clear()
    for grant in store.do(Claim(WorkerId("listener"), ["default"], 10)):
        print(grant.id, flush=True)

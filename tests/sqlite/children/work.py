"""Enqueues, claims and settles in a loop, and writes down what the store has acknowledged, a line each."""

from __future__ import annotations

import os
import sys
import threading

from tenure.model.ids import WorkerId, new_job_ids
from tenure.model.job import NewJob
from tenure.model.outcome import Completed
from tenure.store.contract import Claim, Enqueue, Exchange
from tenure.store.sqlite.store import SqliteStore

store = SqliteStore(sys.argv[1])
log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def say(word: str, ids: list[str]) -> None:
    os.write(log, "".join(f"{word} {job_id}\n" for job_id in ids).encode())


def produce() -> None:
    while True:
        ids = new_job_ids(3)
        store.do(Enqueue([NewJob(job_id, "work", '{"text": "' + "x" * 300 + '"}') for job_id in ids]))
        say("enqueued", [*ids])


threading.Thread(target=produce, daemon=True).start()
threading.Thread(target=produce, daemon=True).start()
outcomes: list[Completed] = []
print("ready", flush=True)
while True:
    # A lease longer than the test: a job that is taken back gets its attempt back, and then grants cannot be counted.
    claim = Claim(WorkerId(f"w{os.getpid()}"), ["default"], 5, lease_seconds=3600)
    answer = store.do(Exchange(outcomes, claim))
    say("settled", [outcome.job_id for outcome in outcomes if (outcome.job_id, outcome.token) not in answer.settled])
    outcomes = [Completed(grant.id, grant.token, '{"ok": true}') for grant in answer.grants]

"""Client processes for the races: `python -m tests.fault.actors NAME '{…}'`. They speak with the test over pipes.

A line on stdout says that a point was reached, a line on stdin lets the actor go on: no test sleeps to be in time.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tenure.errors import StoreUnavailable
from tenure.model.event import NewEvent
from tenure.model.ids import JobId, WorkerId, new_job_id, new_worker_id
from tenure.model.job import Grant, NewJob
from tenure.model.outcome import Completed, EffectRecord, Failed, Outcome, Rejected, Released, Stopped, Suspended
from tenure.store.admin import AppendEvents, RecordEffect
from tenure.store.contract import Claim, Enqueue, Heartbeat, Hold, Request, Settle, Start, Store
from tenure.store.queries import CountJobs, ListJobs
from tests.conformance.engines import open_store
from tests.fault.journal import Journal, Record, granted

T = TypeVar("T")


def say(word: str) -> None:
    os.write(1, word.encode() + b"\n")


def hear() -> str:
    return sys.stdin.readline().strip()


def drain(url: str, journal: str, limit: int) -> None:
    """Claim and complete until every job has ended."""
    store, log, worker = open_store(url), Journal(Path(journal)), new_worker_id()
    store.do(CountJobs())
    say("ready")
    hear()
    while True:
        grants = store.do(Claim(worker, ["default"], limit=limit, lease_seconds=600))
        if not grants:
            if not store.do(CountJobs(states=["queued", "leased", "running"])):
                break
            continue
        log.write(*(granted(worker, grant) for grant in grants))
        settled = store.do(Settle([Completed(grant.id, grant.token) for grant in grants]))
        log.write(*(Record("settle", "ok", worker, one.job_id, one.token, "complete", one.state) for one in settled))
    store.close()


def storm(url: str, key: str, threads: int) -> None:
    """Enqueue the same key from many threads at once, each with a store of its own."""
    stores = [open_store(url) for _ in range(threads)]
    for store in stores:
        store.do(CountJobs())
    gate = threading.Barrier(threads + 1)
    answers: list[tuple[JobId, bool]] = []

    def run(store: Store) -> None:
        job = NewJob(id=new_job_id(), kind="work", key=key)
        gate.wait()
        [answer] = store.do(Enqueue([job]))
        answers.append((answer.id, answer.duplicate))

    crew = [threading.Thread(target=run, args=[store]) for store in stores]
    for thread in crew:
        thread.start()
    say("ready")
    hear()
    gate.wait()
    for thread in crew:
        thread.join()
    say(json.dumps(answers))
    for store in stores:
        store.close()


@dataclass
class Churn:
    """A client that enqueues, claims and settles without end, and writes down what it was told."""

    store: Store
    log: Journal
    worker: WorkerId
    lease_seconds: float = 1.0

    def round(self, number: int) -> None:
        jobs = [NewJob(id=new_job_id(), kind="work", queue="churn", payload='{"n": 1}') for _ in range(1 + number % 3)]
        self.log.write(*(Record("enqueue", "invoke", self.worker, job.id) for job in jobs))
        answers = self.insist(lambda: Enqueue(jobs))
        self.log.write(*(Record("enqueue", "ok", self.worker, answer.id) for answer in answers))
        grants = self.insist(self.claim)
        self.log.write(*(granted(self.worker, grant) for grant in grants))
        outcomes = [self.outcome(grant, number + place) for place, grant in enumerate(grants)]
        settled = self.insist(lambda: Settle(outcomes))
        self.log.write(
            *(
                Record("settle", "ok", self.worker, one.job_id, one.token, type(outcome).__name__, one.state)
                for outcome, one in zip(outcomes, settled, strict=True)
            )
        )

    def claim(self) -> Claim:
        # This worker knows of nothing that it holds, so a grant whose reply was lost is handed out again.
        return Claim(self.worker, ["churn"], limit=4, lease_seconds=self.lease_seconds, held=[])

    def outcome(self, grant: Grant, number: int) -> Outcome:
        match number % 5:
            case 0:
                return Failed(grant.id, grant.token, "boom")
            case 1:
                return Released(grant.id, grant.token)
            case _:
                return Completed(grant.id, grant.token, result="[1]")

    def insist(self, request: Callable[[], Request[T]]) -> T:
        """Repeat while the database is away: the outcome is unknown, and repeating is safe."""
        deadline = time.monotonic() + 60
        made = request()
        while True:
            try:
                return self.store.do(made)
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise


def churn(url: str, journal: str, lease_seconds: float = 1.0) -> None:
    """Churn until stdin is closed."""
    client = Churn(open_store(url), Journal(Path(journal)), new_worker_id(), lease_seconds)
    stop = _closing_stdin()
    number = 0
    while not stop.is_set():
        client.round(number)
        say(str(number))
        number += 1
    client.store.close()


def flood(url: str, size: int) -> None:
    """Until stdin is closed: enqueue ten jobs of `size` bytes in all, claim and complete them; a line per round."""
    store, worker, stop = open_store(url), new_worker_id(), _closing_stdin()
    payload = json.dumps({"text": "x" * (size // 10)})
    while not stop.is_set():
        store.do(Enqueue([NewJob(id=new_job_id(), kind="work", queue="quick", payload=payload) for _ in range(10)]))
        grants = store.do(Claim(worker, ["quick"], limit=10, lease_seconds=600))
        store.do(Heartbeat([Hold(grant.id, grant.token, progress="[1]") for grant in grants]))
        store.do(Settle([Completed(grant.id, grant.token, result=payload) for grant in grants]))
        say(".")
    store.close()


def browse(url: str) -> None:
    """Until stdin is closed: read counts and pages of jobs without rest."""
    store, stop = open_store(url), _closing_stdin()
    say("reading")
    while not stop.is_set():
        store.do(CountJobs())
        store.do(ListJobs(limit=50))
    store.close()


def _closing_stdin() -> threading.Event:
    closed = threading.Event()

    def wait_for_the_end() -> None:
        hear()
        closed.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    return closed


def nursery(url: str, journal: str) -> None:
    """For each line heard, fork a child that churns until it is killed: its id, a line per round, then `gone`."""
    while hear():
        pid = os.fork()
        if pid == 0:
            client = Churn(open_store(url), Journal(Path(journal)), new_worker_id())
            say(f"child {os.getpid()}")
            number = os.getpid()
            while True:
                client.round(number)
                say(".")
                number += 1
        os.waitpid(pid, 0)
        say("gone")


def zombie(url: str, lease_seconds: float) -> None:
    """Claim a job, be stopped by the test, and after that try everything that a worker can write."""
    store = open_store(url)
    [grant] = store.do(Claim(new_worker_id(), ["default"], lease_seconds=lease_seconds))
    say(json.dumps([grant.id, grant.token]))
    hear()
    job_id, token = grant.id, grant.token
    ends: dict[str, Outcome] = {
        "complete": Completed(job_id, token, result="1", jobs=(NewJob(id=new_job_id(), kind="follow"),)),
        "fail": Failed(job_id, token, "late"),
        "reject": Rejected(job_id, token, "late"),
        "release": Released(job_id, token),
        "suspend": Suspended(job_id, token, "late"),
        "stop": Stopped(job_id, token),
    }
    answers: dict[str, bool] = {name: store.do(Settle([end]))[0].lost for name, end in ends.items()}
    answers["start"] = store.do(Start([Hold(job_id, token)]))[0].lost
    answers["heartbeat"] = job_id in store.do(Heartbeat([Hold(job_id, token)])).lost
    answers["progress"] = job_id in store.do(Heartbeat([Hold(job_id, token, progress='"late"')])).lost
    answers["event"] = not store.do(AppendEvents(job_id, token, [NewEvent("log")]))
    answers["effect"] = store.do(RecordEffect(job_id, token, EffectRecord("mail", "intended"))) is None
    say(json.dumps(answers))
    store.close()


def main() -> None:
    actors: dict[str, Callable[..., None]] = {
        "drain": drain,
        "storm": storm,
        "churn": churn,
        "flood": flood,
        "browse": browse,
        "nursery": nursery,
        "zombie": zombie,
    }
    actors[sys.argv[1]](**json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()

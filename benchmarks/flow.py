"""`python -m benchmarks.flow`: what durable flow costs jobs that do not use it. Prints ratios; about two minutes.

    beside   the rate of one client that drains plain jobs, while another process drains plain jobs too, and while it
             drains workflows instead: what is lost by sharing the machine is the same in both
    in use   the rate of one client alone, on a store without any durable flow, and on one with thousands of jobs that
             wait for signals, children, memos and tasks (W3a's question)

Rounds of both sides take turns; each figure is the median of its rounds.

Examples:
    python -m benchmarks.flow
    python -m benchmarks.flow --engine sqlite --jobs 10000 --rounds 5
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import servers
from benchmarks.contenders import BOTH, ROOT
from tenure.client.connect import open_store
from tenure.flow.workflows import prepare, requests
from tenure.model.ids import WorkerId, new_job_id
from tenure.model.job import Grant, NewJob
from tenure.model.memo import memo_id
from tenure.model.outcome import Completed, Suspended
from tenure.model.policy import Limits, QueuePolicy
from tenure.model.step import NewGroup, NewStep
from tenure.model.workflow import Workflow
from tenure.store.admin import SetQueues
from tenure.store.contract import Claim, Enqueue, Exchange, Settle, Store
from tenure.store.flow import SweepFlow
from tenure.store.memo import TakeMemo
from tenure.store.workflows import AdvanceWorkflows

BATCH = 50
NEIGHBOURS = ("plain", "workflow")
TASKS = 1000
"""Of each workflow, or plain jobs of each turn, of the process beside."""
JOBS = {"sqlite": 30_000, "postgres": 6_000}
QUEUES = ("plain", "beside", "durable", "agent")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print, or be the process beside."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flow", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--engine", choices=BOTH, help="both by default")
    parser.add_argument("--jobs", type=int, help="plain jobs of each round; 30,000 on SQLite and 6,000 on PostgreSQL")
    parser.add_argument("--waiting", type=int, default=4000, help="jobs that wait while flow is in use")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--be", nargs=2, metavar=("WHAT", "URL"), help=argparse.SUPPRESS)
    told = parser.parse_args(argv)
    if told.be:
        _drain_for_ever(*told.be)
        return 0
    for engine in [told.engine] if told.engine else BOTH:
        jobs = told.jobs or JOBS[engine]
        _beside(engine, jobs, told.rounds)
        _in_use(engine, jobs, told.waiting, told.rounds)
    return 0


def _beside(engine: str, jobs: int, rounds: int) -> None:
    rates: dict[str, list[float]] = {one: [] for one in ("alone", *NEIGHBOURS)}
    with _store(engine) as (store, url):
        _rate(store, jobs // 10)
        for _ in range(rounds):
            rates["alone"].append(_rate(store, jobs))
            for what in NEIGHBOURS:
                with _neighbour(what, url):
                    rates[what].append(_rate(store, jobs))
    alone, plain, workflow = (statistics.median(rates[one]) for one in rates)
    print(
        f"{engine}: plain jobs {alone:,.0f}/s alone, {plain:,.0f}/s beside plain jobs, {workflow:,.0f}/s beside a "
        f"workflow: {workflow / plain:.2f} of the rate beside plain jobs (0.80 is wanted)"
    )


def _in_use(engine: str, jobs: int, waiting: int, rounds: int) -> None:
    with _store(engine) as (without, _), _store(engine) as (with_flow, _):
        _use_flow(with_flow, waiting)
        for store in (without, with_flow):
            _rate(store, jobs // 10)
        pairs = [(_rate(without, jobs), _rate(with_flow, jobs)) for _ in range(rounds)]
    before, after = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(
        f"{engine}: plain jobs {before:,.0f}/s without flow, {after:,.0f}/s with {waiting:,} jobs that wait: "
        f"{after / before:.2f} (0.95 is wanted)"
    )


def _rate(store: Store, jobs: int) -> float:
    """Plain jobs per second: enqueued before, claimed and settled by exchanges."""
    _enqueue(store, "plain", jobs)
    began = time.perf_counter()
    done = 0
    held: list[Grant] = []
    while done < jobs:
        ends = [Completed(grant.id, grant.token) for grant in held]
        held = store.do(Exchange(ends, Claim(WorkerId("bench"), ["plain"], BATCH))).grants
        done += len(ends)
    return jobs / (time.perf_counter() - began)


def _enqueue(store: Store, queue: str, count: int) -> None:
    for first in range(0, count, 1000):
        store.do(Enqueue([NewJob(new_job_id(), "work", "{}", queue) for _ in range(min(1000, count - first))]))


# --- flow in use


def _use_flow(store: Store, waiting: int) -> None:
    """Jobs that wait: a quarter each for signals, children, a memo and the tasks before them."""
    quarter = waiting // 4
    _start_workflow(store, quarter)
    _enqueue(store, "durable", 3 * quarter)
    for kind, count in (("signal", quarter), ("group", quarter), ("memo", quarter)):
        for _ in range(0, count, BATCH):
            held = store.do(Claim(WorkerId("bench"), ["durable"], BATCH))
            store.do(Settle([_waits(store, kind, grant) for grant in held]))
    while store.do(SweepFlow()).more:
        pass


def _waits(store: Store, kind: str, grant: Grant) -> Suspended:
    step = NewStep(f"wait/{grant.id}", "signal", "open", awaits=f"signal:{grant.id}")
    if kind == "group":
        child = NewJob(new_job_id(), "child", "{}", "beside")
        return Suspended(grant.id, grant.token, kind, steps=(NewStep("one"),), groups=(NewGroup("all", (child,)),))
    if kind == "memo":
        identity = memo_id(None, "bench", "one")
        told = store.do(TakeMemo(grant.id, grant.token, identity, "bench", "one"))
        if told is not None and told.state == "taken":
            step = NewStep("bench/one#1", "memo", "open", awaits=f"memo:{identity}")
    return Suspended(grant.id, grant.token, kind, steps=(NewStep("one"), step))


def _start_workflow(store: Store, tasks: int) -> None:
    """Tasks of which each waits for up to three before it."""
    flow = Workflow("bench")
    for number in range(tasks):
        before = sorted({f"t{number - step}" for step in (1, 7, 40) if number >= step})
        flow.task(f"t{number}", agent="agent", task_type="t", after=before if number % 20 else [])
    prepared = prepare(flow, lambda _: None, Limits(), key=None, actor="bench", tenant=None)
    for request in requests(prepared, new_job_id(), {}):
        store.do(request)


# --- the process beside


def _drain_for_ever(what: str, url: str) -> None:
    store = open_store(url, "always")
    for turn in itertools.count():
        queue = "agent" if what == "workflow" else "beside"
        if what == "workflow":
            _start_workflow(store, TASKS)
        else:
            _enqueue(store, queue, TASKS)
        if not turn:
            print(json.dumps({"ready": True}), flush=True)
        done = 0
        held: list[Grant] = []
        while done < TASKS:
            ends = [Completed(grant.id, grant.token) for grant in held]
            held = store.do(Exchange(ends, Claim(WorkerId("beside"), [queue], BATCH))).grants
            done += len(ends)
            while what == "workflow" and store.do(AdvanceWorkflows()).more:
                pass


@contextmanager
def _neighbour(what: str, url: str) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.flow", "--be", what, url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


@contextmanager
def _store(engine: str) -> Iterator[tuple[Store, str]]:
    with tempfile.TemporaryDirectory() as folder:
        if engine == "sqlite":
            url = f"sqlite:///{Path(folder) / 'jobs.db'}"
            yield from _opened(url)
            return
        Path(folder).chmod(0o755)
        with servers.postgres(Path(folder)) as server, servers.fresh_database(server, "tenure_flow") as url:
            yield from _opened(url)


def _opened(url: str) -> Iterator[tuple[Store, str]]:
    store = open_store(url, "always")
    try:
        policy = QueuePolicy(key_scope="none", max_attempts=1)
        store.do(SetQueues(dict.fromkeys(QUEUES, policy), actor="bench"))
        yield store, url
    finally:
        store.close()


if __name__ == "__main__":
    sys.exit(main())

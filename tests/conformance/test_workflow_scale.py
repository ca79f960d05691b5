"""A large graph ends, and every transaction on the way is bounded. TENURE_LONG=1: 100,000 tasks and 300,000 edges."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tenure.flow.workflows import prepare, requests
from tenure.model.ids import WorkerId, new_job_id
from tenure.model.outcome import Completed
from tenure.model.policy import Limits
from tenure.model.workflow import Workflow
from tenure.store.contract import Claim, Settle
from tenure.store.workflows import AdvanceWorkflows
from tests.conformance.acts import Subject
from tests.conformance.runs import AGENT, run

TASKS = 100_000 if os.environ.get("TENURE_LONG") == "1" else 2_000


class Watch:
    """How long each kind of request took at most. Timings are reported; they decide nothing."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.longest[what] = max(self.longest.get(what, 0.0), time.perf_counter() - begun)


def graph(tasks: int) -> Workflow:
    """Some three edges a task, to tasks before it; and one task that all of a tenth wait for."""
    chance = random.Random(7)
    flow = Workflow("large")
    for number in range(tasks):
        before = {f"t{chance.randrange(number)}" for _ in range(3)} if number else set()
        if number % 10 == 1:
            before.add("t0")
        flow.task(f"t{number}", agent="A", task_type="t", after=sorted(before))
    return flow


def test_a_large_graph_ends_in_bounded_transactions(store: Subject) -> None:
    watch = Watch()
    prepared = prepare(graph(TASKS), lambda _: None, Limits(), key=None, actor="test", tenant=None)
    flow_id = new_job_id()
    for request in requests(prepared, flow_id, {"A": AGENT}):
        assert len(request.tasks) <= 1_000
        assert len(request.edges) <= 1_000
        with watch.on("start"):
            store.do(request)
    done = 0
    while done < TASKS:
        with watch.on("claim"):
            held = store.do(Claim(WorkerId("w1"), ["A"], 500))
        with watch.on("settle"):
            store.do(Settle([Completed(grant.id, grant.token) for grant in held]))
        done += len(held)
        while True:
            with watch.on("advance"):
                advanced = store.do(AdvanceWorkflows())
            if not advanced.more:
                break
        assert held or advanced.events, "nothing is released, and nothing is left to fold"

    found = run(store, flow_id)
    assert (found.state, found.succeeded, found.total) == ("completed", TASKS, TASKS)
    print({name: f"{seconds * 1000:.0f} ms" for name, seconds in watch.longest.items()}, len(prepared.plan.edges))

"""What is handed in wrongly to durable flow, workflows, memory and metrics is refused in our own words, by both engines
alike: whatever an argument gets, no other exception comes out, and nothing is refused by one engine alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import tenure
from tenure.errors import TenureError
from tenure.testing import temporary_app
from tests.conformance.engines import migrated_database
from tests.servers import PostgresServer

NO_ID = "01a00000-0000-7000-8000-000000000000"
WRONG: tuple[Any, ...] = (
    *(None, True, -1, 0, 5, 10**30, 1.5, float("nan"), float("inf"), 1e300),
    *("", " ", "x" * 5000, "a\0b", "\ud800", b"x", [], ["a"], {}, object(), {"a": float("nan")}, {"k": object()}),
    *(timedelta.max, timedelta(seconds=-1), datetime(2020, 1, 1)),  # noqa: DTZ001 - one without a time zone is meant
    *(datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC), NO_ID),
)


def flow(task: dict[str, Any] | None = None, name: Any = "w", **settings: Any) -> tenure.Workflow:
    made = tenure.Workflow(name, **settings)
    made.task("first", agent="q", task_type="t")
    made.task(**{"name": "second", "agent": "q", "task_type": "t", **(task or {})})
    return made


def fan(**settings: Any) -> tenure.Workflow:
    made = tenure.Workflow("w")
    first = made.task("first", agent="q", task_type="t")
    made.each("each", agent="q", task_type="t", over=first.result, **settings)
    return made


def asking(**level: Any) -> tenure.Workflow:
    return flow(on_breach="escalate", escalate_to=tenure.Escalation(**level))


CALLS: dict[str, Callable[[tenure.App, Any], Any]] = {
    "signal key": lambda app, bad: app.signal(bad),
    "signal value": lambda app, bad: app.signal("k", bad),
    "signal to": lambda app, bad: app.signal("k", to=bad),
    "signal scope": lambda app, bad: app.signal("k", scope=bad),
    "signal keep": lambda app, bad: app.signal("k", keep=bad),
    "signal actor": lambda app, bad: app.signal("k", actor=bad),
    "steps": lambda app, bad: app.steps.all(bad),
    "children": lambda app, bad: app.steps.children(bad),
    "children after": lambda app, bad: app.steps.children(NO_ID, after=bad),
    "children state": lambda app, bad: app.steps.children(NO_ID, state=bad),
    "forget": lambda app, bad: app.steps.forget(bad, "k", reason="r"),
    "forget key": lambda app, bad: app.steps.forget(NO_ID, bad, reason="r"),
    "forget reason": lambda app, bad: app.steps.forget(NO_ID, "k", reason=bad),
    "memos": lambda app, bad: app.steps.memos(bad),
    "memos kind": lambda app, bad: app.steps.memos(kind=bad),
    "memos key": lambda app, bad: app.steps.memos("n", key=bad),
    "memos tenant": lambda app, bad: app.steps.memos("n", tenant=bad),
    "memos after": lambda app, bad: app.steps.memos("n", after=bad),
    "memos limit": lambda app, bad: app.steps.memos("n", limit=bad),
    "forget memos": lambda app, bad: app.steps.forget_memos(ids=bad),
    "forget memos payload": lambda app, bad: app.steps.forget_memos(kind="k", payload=bad),
    "workflow": lambda app, bad: app.workflows.get(bad),
    "workflows state": lambda app, bad: app.workflows.all(state=bad),
    "workflows name": lambda app, bad: app.workflows.all(name=bad),
    "workflows limit": lambda app, bad: app.workflows.all(limit=bad),
    "workflows after": lambda app, bad: app.workflows.all(after=bad),
    "tasks": lambda app, bad: app.workflows.tasks(bad),
    "tasks outcome": lambda app, bad: app.workflows.tasks(NO_ID, outcome=bad),
    "graph limit": lambda app, bad: app.workflows.graph(NO_ID, limit=bad),
    "cancel reason": lambda app, bad: app.workflows.cancel(NO_ID, reason=bad),
    "cancel actor": lambda app, bad: app.workflows.cancel(NO_ID, reason="r", actor=bad),
    "escalations person": lambda app, bad: app.workflows.escalations(person=bad),
    "escalations state": lambda app, bad: app.workflows.escalations(state=bad),
    "answer": lambda app, bad: app.workflows.answer(NO_ID, bad),
    "answer id": lambda app, bad: app.workflows.answer(bad, "go_on"),
    "answer note": lambda app, bad: app.workflows.answer(NO_ID, "go_on", note=bad),
    "answer threshold": lambda app, bad: app.workflows.answer(NO_ID, "raise_threshold", threshold=bad),
    "start": lambda app, bad: app.workflows.start(bad),
    "start key": lambda app, bad: app.workflows.start(flow(), key=bad),
    "start tenant": lambda app, bad: app.workflows.start(flow(), tenant=bad),
    "flow name": lambda app, bad: app.workflows.start(flow(name=bad)),
    "flow profile": lambda app, bad: app.workflows.start(flow(profile=bad)),
    "flow on_breach": lambda app, bad: app.workflows.start(flow(on_breach=bad)),
    "flow fail": lambda app, bad: app.workflows.start(flow(fail=bad)),
    "flow escalate_to": lambda app, bad: app.workflows.start(flow(escalate_to=bad)),
    "flow deadline": lambda app, bad: app.workflows.start(flow(deadline=bad)),
    "task name": lambda app, bad: app.workflows.start(flow({"name": bad})),
    "task payload": lambda app, bad: app.workflows.start(flow({"payload": bad})),
    "task agent": lambda app, bad: app.workflows.start(flow({"agent": bad})),
    "task type": lambda app, bad: app.workflows.start(flow({"task_type": bad})),
    "task after": lambda app, bad: app.workflows.start(flow({"after": bad})),
    "task priority": lambda app, bad: app.workflows.start(flow({"priority": bad})),
    "task max_attempts": lambda app, bad: app.workflows.start(flow({"max_attempts": bad})),
    "task undo": lambda app, bad: app.workflows.start(flow({"undo": bad})),
    "task optional": lambda app, bad: app.workflows.start(flow({"optional": bad})),
    "task function": lambda app, bad: app.workflows.start(flow({"job": bad, "agent": None, "task_type": None})),
    "fan-out tolerate": lambda app, bad: app.workflows.start(fan(tolerate=bad)),
    "fan-out payload": lambda app, bad: app.workflows.start(fan(payload=bad)),
    "level agent": lambda app, bad: app.workflows.start(asking(agent=bad, task_type="t")),
    "level type": lambda app, bad: app.workflows.start(asking(agent="q", task_type=bad)),
    "level person": lambda app, bad: app.workflows.start(asking(person=bad)),
    "level after": lambda app, bad: app.workflows.start(asking(person="x", after=bad)),
    "level then": lambda app, bad: app.workflows.start(asking(person="x", after=timedelta(1), then_person=bad)),
    "search": lambda app, bad: app.memory.search(bad, by="words"),
    "search limit": lambda app, bad: app.memory.search("x", limit=bad, by="words"),
    "search by": lambda app, bad: app.memory.search("x", by=bad),
    "search agent": lambda app, bad: app.memory.search("x", agent=bad, by="words"),
    "search tenant": lambda app, bad: app.memory.search("x", tenant=bad, by="words"),
    "remember": lambda app, bad: app.memory.remember(bad, agent="a"),
    "remember agent": lambda app, bad: app.memory.remember("x", agent=bad),
    "remember kind": lambda app, bad: app.memory.remember("x", agent="a", kind=bad),
    "remember ttl": lambda app, bad: app.memory.remember("x", agent="a", ttl=bad),
    "remember tenant": lambda app, bad: app.memory.remember("x", agent="a", tenant=bad),
    "remember meta": lambda app, bad: app.memory.remember("x", agent="a", meta=bad),
    "forget memories": lambda app, bad: app.memory.forget(bad),
    "forget memories before": lambda app, bad: app.memory.forget(before=bad),
    "forget memories tenant": lambda app, bad: app.memory.forget(tenant=bad),
    "events before": lambda app, bad: app.memory.events(before=bad),
    "events job": lambda app, bad: app.memory.events(job_id=bad),
    "metrics since": lambda app, bad: app.metrics(bad),
    "metrics until": lambda app, bad: app.metrics(until=bad),
    "metrics by": lambda app, bad: app.metrics(by=bad),
    "metrics queues": lambda app, bad: app.metrics(queues=bad),
    "metrics quantiles": lambda app, bad: app.metrics(quantiles=bad),
    "metrics quantile": lambda app, bad: app.metrics(quantiles=(bad,)),
}


@pytest.mark.postgres
@pytest.mark.timeout(300)
def test_whatever_an_argument_gets_is_refused_alike_in_our_own_words(postgres_server: PostgresServer) -> None:
    """Many ended in a TypeError or an IndexError, and some were refused by one engine alone."""
    with (
        temporary_app(tenure.App(embedder="words")) as ours,
        migrated_database(postgres_server) as url,
        tenure.App(url, embedder="words") as theirs,
    ):
        for app in (ours, theirs):
            app.queues.set("q")
        found = [
            f"{name}({bad!r:.60}): {outcomes}"
            for name, call in CALLS.items()
            for bad in WRONG
            if len(outcomes := {outcome(app, call, bad) for app in (ours, theirs)}) > 1
            or any(not one.startswith(("ok", "refused")) for one in outcomes)
        ]

    assert found == []


def outcome(app: tenure.App, call: Callable[[tenure.App, Any], Any], bad: Any) -> str:
    try:
        call(app, bad)
    except TenureError as exc:
        return f"refused: {exc.code}" if exc.code != "internal" else f"internal: {exc}"
    except Exception as exc:  # noqa: BLE001 - what it may not be
        return f"{type(exc).__name__}: {exc}"
    return "ok"

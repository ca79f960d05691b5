"""The reference is complete and true: every command is in it, and `--json` answers what it says."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import pytest

import tenure
from tenure import App, Escalation, NewEvent, NewStep, Workflow
from tenure.bundle import document
from tenure.bundle.collect import collect
from tenure.cli.main import COMMANDS, SECTIONS
from tenure.cli.reference import SHAPES, WITHOUT_JSON, commands, page, record_fields
from tenure.model.ids import WorkerId
from tenure.store.contract import Heartbeat, WorkerRow
from tenure.store.flow import RecordSteps
from tests.cli.conftest import Cli

ROOT = Path(__file__).parents[2]


def test_the_page_in_the_docs_is_what_the_commands_say() -> None:
    written = (ROOT / "docs" / "reference" / "cli.md").read_text()

    assert written == page(), "Run: python -m tenure.cli.reference > docs/reference/cli.md"


def test_every_command_has_a_shape_a_help_and_an_option_for_json() -> None:
    found = dict(commands())

    assert set(found) == set(SHAPES) | WITHOUT_JSON
    for path, command in found.items():
        assert command.help, path
        assert path in WITHOUT_JSON or "--json" in {opt for param in command.params for opt in param.opts}, path


def test_the_list_of_commands_is_the_one_in_the_help() -> None:
    assert len(COMMANDS) == sum(len(section) for section in SECTIONS.values())
    planned = (
        "init dev demo worker enqueue claim heartbeat complete fail release jobs dlq queues gates workers schedules "
        "stats top tail reconcile doctor migrate prune version"
    )
    assert set(planned.split()) <= set(COMMANDS)


@pytest.fixture
def busy(app: App) -> dict[str, str]:
    """A database in which every list has something to show."""
    app.queues.set("loud", events=True, max_attempts=1)
    app.queues.set("durable")
    app.store.do(Heartbeat((), worker=WorkerRow(WorkerId("w-1"), "host", 1)))
    dead = app.enqueue("k", {"a": 1}, queue="loud").id
    (grant,) = app.claim(queues="loud")
    app.fail(grant, "KeyError: 'a'")
    held = app.enqueue("k", queue="mail").id
    (grant,) = app.claim(queues="mail")
    later = app.enqueue("k", queue="mail", delay=60, key="one").id
    app.memory.remember("brake discs", agent="A")

    @app.job(queue="memos", durable=True)
    def remembered(ctx: tenure.Context) -> Any:
        return ctx.memo("extract", key="e1", ttl=60, do=lambda: 7)

    remembered.enqueue()
    app.run_worker(["memos"], drain=True)
    app.schedule("nightly", "@daily", "report")
    app.schedules.declare()
    app.budgets.set("all", tokens=1000)
    durable = app.enqueue("d", queue="durable").id
    (worn,) = app.claim(queues="durable")
    app.store.do(RecordSteps(worn.id, worn.token, [NewStep("one", value="1")]))
    app.reject(worn, "broken")
    done = app.enqueue("k").id
    app.complete(app.claim()[0], [1], events=[NewEvent("log", '{"message":"x"}')])
    api_token = app.access.new_token("ci", "read:meta").token.id
    document.write(Path("dead.gz"), document.encode(collect(app, dead)), replaces=False)
    return {
        "bundle": "dead.gz",
        "dead": dead,
        "later": later,
        "held": held,
        "token": str(grant.token),
        "done": done,
        "api_token": api_token,
        "durable": durable,
    }


LOOKS = [
    "jobs ls",
    "jobs show {dead}",
    "jobs explain {held}",
    "jobs wait {done}",
    "dlq ls",
    "dlq show {dead}",
    "dlq groups",
    "dlq ack {dead}",
    "dlq replay {dead}",
    "queues ls",
    "queues backlog mail",
    "queues set mail max_attempts=3",
    "queues pause mail",
    "budgets set tenant:7 --usd 5 --per day",
    "budgets raise all --tokens 5",
    "budgets ls",
    "budgets rm all",
    "gates ls",
    "gates close notify",
    "limits ls",
    "limits waiting",
    "limits set llm --per-minute 5",
    "limits block llm 10m",
    "workers ls",
    "workers drain w-1 --reason old",
    "workers resume w-1",
    "schedules ls",
    "schedules run nightly",
    "schedules edit nightly --every 6h --reason why",
    "memos ls",
    "memos forget extract --key e1 --yes",
    "usage",
    "memory search brake",
    "memory forget --agent A --yes",
    "memory reindex",
    "memory stats",
    "profile ls",
    "profile show outbox",
    "profile install outbox",
    "stats",
    "top",
    "doctor --no-sandbox",
    "migrate",
    "prune",
    "version",
    "enqueue k",
    "heartbeat {held} {token}",
    "complete {held} {token}",
    "fail {held} {token} --error x",
    "release {held} {token}",
    "dlq escalate {dead}",
    "dlq close {dead}",
    "queues resume mail",
    "gates open notify",
    "token new ci --scope read:meta",
    "token ls",
    "token revoke {api_token}",
    "audit ls",
    "audit seal",
    "audit verify",
    "install-skill",
    "schedules pause nightly",
    "schedules resume nightly",
    "schedules rm nightly",
    "jobs cancel {held}",
    "jobs revive {dead}",
    "jobs edit {later} --priority 4",
    "signal paid:7 12",
    "jobs forget-step {durable} one",
    "move sqlite:///cli.db sqlite:///other.db --leases carry",
    "bundle write {dead}",
    "bundle open {bundle}",
]


@pytest.mark.parametrize("look", LOOKS)
def test_json_has_exactly_the_shape_that_is_written_down(cli: Cli, busy: dict[str, str], look: str) -> None:
    args = look.format(**busy).split()
    path = max((one for one in SHAPES if args[: len(one.split())] == one.split()), key=len)

    found = cli(*args, "--json")

    assert found.out, found.err
    assert list(mismatches(found.json, SHAPES[path], path)) == []


WORKFLOW_LOOKS = [
    "workflows ls",
    "workflows show {asking}",
    "workflows cancel {asking}",
    "workflows retry {failed}",
    "workflows escalations",
    "workflows answer {escalation} go_on",
]


@pytest.mark.parametrize("look", WORKFLOW_LOOKS)
def test_workflows_have_their_shapes_too(cli: Cli, app: App, look: str) -> None:
    app.queues.set("flow", max_attempts=1)
    asks = Workflow("asks", on_breach="escalate", escalate_to=[Escalation(person="ann")])
    fails = Workflow("fails")
    ids = []
    for flow in (asks, fails):
        flow.task("only", agent="flow", task_type="t")
        ids.append(app.workflows.start(flow).id)
        app.workflows.advance()
        app.fail(app.claim(queues="flow")[0], "broken")
        app.workflows.advance()
    [asked] = app.workflows.escalations(ids[0])
    args = look.format(asking=ids[0], failed=ids[1], escalation=asked.id).split()
    path = " ".join(args[:2])

    found = cli(*args, "--json")

    assert found.out, found.err
    assert list(mismatches(found.json, SHAPES[path], path)) == []


def test_every_shape_is_looked_at() -> None:
    looked = {path for path in SHAPES for look in [*LOOKS, *WORKFLOW_LOOKS] if f"{look} ".startswith(f"{path} ")}
    # below, among the processes, among what operators do every day, and on a terminal
    elsewhere = {
        "claim",
        "confirm",
        "tail",
        "jobs logs",
        "jobs follow",
        "worker",
        "demo",
        "bench",
        "serve",
        "apply",
    } | {"queues rm", "limits clear", "limits rm"}
    others = {
        path for path in SHAPES if path.split()[0] in {"reconcile", "profile", "workflows", "inbox"}
    }  # in files of their own

    assert set(SHAPES) - looked <= elsewhere | others


def test_claims_and_events_have_their_shapes_too(cli: Cli, app: App, busy: dict[str, str]) -> None:
    app.enqueue("k")

    granted = cli("claim", "--json").json
    events = [json.loads(line) for line in cli("tail", "--once", "--json").out.splitlines()]

    assert list(mismatches(granted, SHAPES["claim"], "claim")) == []
    assert events
    for event in events:
        assert list(mismatches(event, SHAPES["tail"], "tail")) == []


def mismatches(value: Any, kind: Any, where: str) -> Iterator[str]:
    """Where a JSON value is not what its type says."""
    kind = getattr(kind, "__supertype__", kind)
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if isinstance(kind, type) and is_dataclass(kind):
        yield from _in_record(value, kind, where)
    elif origin in {Union, types.UnionType}:
        if not any(not list(mismatches(value, one, where)) for one in args):
            yield f"{where}: {value!r} is no {kind}"
    elif origin is Literal:
        yield from () if value in args else (f"{where}: {value!r} is none of {args}",)
    elif origin is not None:
        pairs = value.items() if issubclass(origin, Mapping) else enumerate(value)
        for name, inner in pairs:
            yield from mismatches(inner, args[1] if issubclass(origin, Mapping) else args[0], f"{where}[{name}]")
    elif not _is_plain(value, kind):
        yield f"{where}: {value!r} is no {kind}"


def _in_record(value: Any, record: type, where: str) -> Iterator[str]:
    expected = record_fields(record)
    if not isinstance(value, dict) or set(value) != set(expected):
        yield f"{where}: {value!r} has not the fields {sorted(expected)}"
        return
    for name, inner in expected.items():
        yield from mismatches(value[name], inner, f"{where}.{name}")


def _is_plain(value: Any, kind: type) -> bool:
    if kind is datetime:
        return isinstance(value, str) and value.endswith("Z") and bool(datetime.fromisoformat(value))
    if issubclass(kind, Enum):
        return value in {one.value for one in kind}
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is kind

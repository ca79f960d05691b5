"""`tenure workflows`: what it shows of real runs, and what it does to them."""

from __future__ import annotations

from typing import Any

import pytest

import tenure
from tenure.cli.reference import SHAPES
from tenure.testing import drain
from tests.cli.conftest import Cli
from tests.cli.test_reference import mismatches


@pytest.fixture
def runs(app: tenure.App) -> dict[str, str]:
    """One workflow that was escalated to a person because its task died, and one that is open."""

    @app.job(queue="A")
    def good(payload: dict[str, int]) -> None: ...

    @app.job(queue="B", max_attempts=1)
    def bad(payload: dict[str, int]) -> None:
        raise tenure.Permanent("never")

    risky = tenure.Workflow("risky", on_breach="escalate", escalate_to=tenure.Escalation(person="ann"))
    risky.task("last", agent="A", task_type="good", after=[risky.task("first", agent="B", task_type="bad")])
    escalated = app.workflows.start(risky)
    drain(app, queues=["A", "B"], raise_errors=False)
    app.workflows.advance()
    calm = tenure.Workflow("calm")
    calm.task("only", agent="A", task_type="good")
    return {"escalated": escalated.id, "open": app.workflows.start(calm).id}


def shaped(cli: Cli, path: str, *args: str) -> Any:
    """The JSON of a command that ended well, which has the shape that is written down."""
    found = cli("workflows", path, *args, "--json")
    assert found.code == 0, found.err
    assert list(mismatches(found.json, SHAPES[f"workflows {path}"], path)) == []
    return found.json


def test_workflows_are_listed_and_shown_with_their_graph(cli: Cli, runs: dict[str, str]) -> None:
    listed = {one["id"]: one["state"] for one in shaped(cli, "ls")["workflows"]}
    shown = cli("workflows", "show", runs["escalated"])
    dot = cli("workflows", "show", runs["escalated"], "--dot")
    mermaid = cli("workflows", "show", runs["escalated"], "--mermaid")

    assert listed == {runs["escalated"]: "escalated", runs["open"]: "running"}
    assert "first" in shown.out
    assert dot.out.startswith("digraph")
    assert "-->" in mermaid.out
    shaped(cli, "show", runs["open"])


def test_an_open_workflow_is_cancelled_with_its_tasks(cli: Cli, runs: dict[str, str]) -> None:
    moved = shaped(cli, "cancel", runs["open"], "--reason", "not needed")

    assert moved["workflow"]["state"] == "cancelled"
    assert moved["counts"]["open"] == 0


def test_what_failed_is_run_again(cli: Cli, app: tenure.App, runs: dict[str, str]) -> None:
    moved = shaped(cli, "retry", runs["escalated"])

    assert moved["workflow"]["state"] == "running"
    assert [job.kind for job in app.jobs(state="queued", queue="B")] == ["bad"]


def test_a_person_answers_what_was_put_to_them(cli: Cli, runs: dict[str, str]) -> None:
    [asked] = shaped(cli, "escalations", "--person", "ann")["escalations"]
    answered = shaped(cli, "answer", asked["id"], "fail", "--note", "no use")

    assert answered["workflow"]["state"] == "failed"
    assert shaped(cli, "escalations")["escalations"] == []


def test_a_workflow_that_is_not_there_is_not_found(cli: Cli, app: tenure.App) -> None:
    found = cli("workflows", "show", "00000000-0000-7000-8000-000000000000", "--json")

    assert found.code == 3
    assert "00000000-0000-7000-8000-000000000000" in found.error["message"]

"""Reports gather what jobs left into one file; what is in there is shown, never done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import tenure
from tenure.effects import reports
from tenure.effects.atomic_file import write_file
from tenure.store.flow import SweepFlow
from tenure.testing import drain
from tests.effects.conftest import app_at, on_both_engines


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def app(root: Path, store_url: str) -> Iterator[tenure.App]:
    app = tenure.App().use(reports(root=root))

    @app.job
    def echo(payload: Any, ctx: tenure.Context) -> Any:
        ctx.set_result_summary(f"said {payload}")
        return payload

    @app.job(max_attempts=1)
    def fail(payload: str) -> None:
        raise ValueError(payload)

    with app_at(app, store_url) as app:
        yield app


def report(app: tenure.App, **payload: Any) -> tenure.Job:
    job_id = app.enqueue("report", {"path": "report.md", **payload}).id
    drain(app, raise_errors=False)
    return app.get(job_id)


@on_both_engines
def test_a_report_lists_jobs_with_results_and_errors(app: tenure.App, root: Path) -> None:
    ids = [app.enqueue("echo", {"n": 7}).id, app.enqueue("fail", "no luck").id]
    drain(app, raise_errors=False)

    job = report(app, title="Nightly", jobIds=ids)

    text = (root / "report.md").read_text()
    assert text.startswith("# Nightly\n\n2 jobs, 1 dead, 1 succeeded.\n")
    assert all(job_id in text for job_id in ids)
    assert '"n": 7' in text
    assert "ValueError: no luck" in text
    assert (job.result["jobs"], job.result["states"]) == (2, {"succeeded": 1, "dead": 1})
    assert job.result_summary == "2 jobs: 1 dead, 1 succeeded"
    assert list(app.effects.reconcile()) == []


@pytest.mark.parametrize("by", ["workflow_id", "parent_id"])
def test_a_workflow_or_a_parent_names_the_jobs(app: tenure.App, root: Path, by: str) -> None:
    group = app.enqueue("echo", 0).id if by == "parent_id" else str(uuid4())
    options: dict[str, Any] = {by: group}
    ids = {app.enqueue("echo", number, **options).id for number in range(3)}
    app.enqueue("echo", 99)
    drain(app, raise_errors=False)
    name = "workflowId" if by == "workflow_id" else "parentId"
    told = {"path": "r.json", "format": "json", name: group}
    app.enqueue("report", told, **options)  # itself a part of the group
    drain(app, raise_errors=False)

    rows = json.loads((root / "r.json").read_text())["jobs"]

    assert {row["id"] for row in rows} == ids
    assert sorted(row["result"] for row in rows) == [0, 1, 2]


@on_both_engines
def test_it_waits_for_jobs_that_have_not_ended_without_spending_attempts(app: tenure.App, root: Path) -> None:
    pending = app.enqueue("echo", 1, delay=3600).id

    waiting = report(app, jobIds=[pending])
    at_once = report(app, jobIds=[pending], waitForAll=False)

    assert (waiting.state, waiting.attempt, at_once.state) == ("waiting", 0, "succeeded")
    assert waiting.waiting_for == f"job:{pending}"
    assert "queued" in (root / "report.md").read_text()


@on_both_engines
def test_it_is_woken_once_by_the_end_of_the_job_that_it_waits_for(app: tenure.App, root: Path) -> None:
    first, last = (app.enqueue("echo", number, delay=3600).id for number in range(2))
    waiting = report(app, jobIds=[first, last], format="json")

    app.cancel(first)
    app.store.do(SweepFlow())
    assert app.get(waiting.id).state == "waiting"

    app.cancel(last)
    app.store.do(SweepFlow())
    assert app.get(waiting.id).state == "queued"
    drain(app)

    done = app.get(waiting.id)
    assert (done.state, done.attempt) == ("succeeded", 1)
    rows = json.loads((root / "report.md").read_text())["jobs"]
    assert [(row["id"], row["state"]) for row in rows] == [(first, "cancelled"), (last, "cancelled")]
    assert app.attempts(waiting.id) == []


@on_both_engines
def test_an_attempt_that_died_after_its_write_does_not_stand_in_the_next_ones_way(
    app: tenure.App, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs moved on in between, so the second attempt writes something else over what the first one left."""
    app.queues.set("reports", backoff=tenure.Backoff(shape="none"))
    watched = app.enqueue("echo", 1, delay=3600).id
    calls: list[Any] = []

    def die_once(*args: Any, **settings: Any) -> Any:
        calls.append(args)
        record = write_file(*args, **settings)
        if len(calls) == 1:
            app.cancel(watched)
            raise OSError("the worker died here")
        return record

    monkeypatch.setattr("tenure.effects.report_jobs.write_file", die_once)

    job = report(app, jobIds=[watched], waitForAll=False)

    assert (job.state, job.attempt, len(calls)) == ("succeeded", 2, 2)
    assert "1 jobs, 1 cancelled" in (root / "report.md").read_text()
    assert list(app.effects.reconcile()) == []


@on_both_engines
def test_a_tenants_report_tells_nothing_of_another_tenant(app: tenure.App, root: Path) -> None:
    group = str(uuid4())
    ids = {
        name: app.enqueue("echo", f"canary-{name}", workflow_id=group, tenant=name).id for name in ("ours", "theirs")
    }
    drain(app, raise_errors=False)

    def ask(path: str, **told: Any) -> tenure.Job:
        job_id = app.enqueue("report", {"path": path, **told}, tenant="ours").id
        drain(app, raise_errors=False)
        return app.get(job_id)

    refused = ask("named.md", jobIds=[ids["theirs"]])
    ask("group.md", workflowId=group)
    report(app, jobIds=list(ids.values()))

    assert (refused.state, (root / "named.md").exists()) == ("failed", False)
    assert "There is no job" in (refused.last_error or "")
    assert "canary-ours" in (root / "group.md").read_text()
    assert "theirs" not in (root / "group.md").read_text()
    assert "canary-theirs" in (root / "report.md").read_text(), "a report of nobody in particular is the operator's"


@on_both_engines
def test_a_file_of_somebody_elses_is_left_alone(app: tenure.App, root: Path) -> None:
    (root / "report.md").write_text("mine")
    ids = [app.enqueue("echo", 1).id]
    drain(app, raise_errors=False)

    job = report(app, jobIds=ids)

    assert (job.state, job.attempt, (root / "report.md").read_text()) == ("failed", 1, "mine")


def test_what_results_say_is_inert_in_markdown(app: tenure.App, root: Path) -> None:
    evil = "![x](http://evil/?q=secret) <script>alert(1)</script>\n```\n# owned\n````\n| a | b |"
    ids = [app.enqueue("echo", evil).id]
    drain(app, raise_errors=False)

    report(app, title="![t](http://evil) <b>", jobIds=ids)

    text = (root / "report.md").read_text()
    outside, inside, after = _around_fence(text)
    assert "](http" not in outside + after
    assert "<script" not in outside + after
    assert "# owned" not in [line.strip() for line in (outside + after).splitlines()]
    assert "evil" in inside


def _around_fence(text: str) -> tuple[str, str, str]:
    """What stands before, in and after the one fence, as a reader of Markdown sees it."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("```"))
    marks = lines[start].rstrip("abcdefghijklmnopqrstuvwxyz")
    end = next(number for number, line in enumerate(lines) if number > start and line.strip() == marks)
    return "\n".join(lines[:start]), "\n".join(lines[start : end + 1]), "\n".join(lines[end + 1 :])


def test_secrets_by_key_are_hidden(app: tenure.App, root: Path) -> None:
    ids = [app.enqueue("echo", {"api_key": "canary-77", "n": 1}).id]
    drain(app, raise_errors=False)

    report(app, jobIds=ids)

    assert '"api_key": "[redacted]"' in (root / "report.md").read_text()


@on_both_engines
def test_a_job_that_is_not_there_or_no_job_at_all_is_refused(app: tenure.App) -> None:
    missing = report(app, jobIds=[str(uuid4())])

    assert (missing.state, missing.attempt) == ("failed", 1)
    with pytest.raises(tenure.InvalidPayload, match="name the jobs"):
        app.enqueue("report", {"path": "x"})

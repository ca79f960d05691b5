"""Codes by which a person agrees on a terminal, for clients that cannot ask their user."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp import Client

from tenure import App
from tenure.cli.main import run
from tenure.mcp.caller import Access
from tenure.mcp.confirm import SECONDS
from tenure.mcp.server import make_server
from tenure.model.clock import ManualClock
from tests.mcp.conftest import ask, refused

pytestmark = pytest.mark.anyio
PAUSE = {"queue": "default", "reason": "too loud", "dry_run": False}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'confirm.db'}"


@pytest.fixture
def app(url: str) -> Iterator[App]:
    with App(url) as opened:
        yield opened


async def plan_of(client: Client, tool: str = "pause_queue", **arguments: object) -> str:
    """The plan that a refused call is answered."""
    told = await refused(client, tool, **(arguments or PAUSE))
    error = json.loads(told[told.index("{") :])["error"]
    assert error["code"] == "confirmation_required"
    found: str = error["plan"]
    return found


def answered(url: str, plan: str, answer: str) -> tuple[int, str]:
    """`tenure confirm` on a terminal of its own, where a person types `answer`."""
    person, terminal = pty.openpty()
    command = [sys.executable, "-m", "tenure", "confirm", plan, "--url", url, "--json"]
    process = subprocess.Popen(
        command, stdin=terminal, stderr=terminal, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    os.close(terminal)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(person, 4096)
    assert b"pause_queue" in shown
    assert b"too loud" in shown
    os.write(person, answer.encode())
    out, _ = process.communicate(timeout=60)
    os.close(person)
    return process.returncode, out


async def test_a_code_of_the_command_line_lets_exactly_this_call_through_once(app: App, url: str) -> None:
    async with Client(make_server(app, Access(("admin",)), name="one")) as client:
        plan = await plan_of(client)
        assert answered(url, plan, "n\n")[0] == 1
        status, out = answered(url, plan, "y\n")
        assert status == 0
        code = json.loads(out)["code"]

        async with Client(make_server(app, Access(("admin",)), name="two")) as other:
            assert "another caller" in await refused(other, "pause_queue", **PAUSE, confirmation=code)
        for more in ({"reason": "other"}, {"queue": "mail"}):
            assert "other arguments" in await refused(client, "pause_queue", **{**PAUSE, **more}, confirmation=code)
        assert "another tool" in await refused(client, "resume_queue", **PAUSE, confirmation=code)
        assert app.queues.all("default")[0].paused_at is None
        assert (await ask(client, "pause_queue", **PAUSE, confirmation=code))["is_changed"]
        assert "used before" in await refused(client, "pause_queue", **PAUSE, confirmation=code)

    assert app.queues.all("default")[0].paused_at is not None
    assert [one.actor for one in app.access.audit() if one.act == "mcp:confirm"]


async def test_a_code_is_good_for_ten_minutes(tmp_path: Path, clock: ManualClock) -> None:
    from tenure.mcp.confirm import confirm, read_plan

    with App(f"sqlite:///{tmp_path / 'clock.db'}", clock=clock) as app:
        async with Client(make_server(app, Access(("admin",)))) as client:
            code = await confirm(app, await read_plan(app, await plan_of(client)))
            clock.advance(SECONDS)
            assert "ten minutes" in await refused(client, "pause_queue", **PAUSE, confirmation=code)
            late = await confirm(app, await read_plan(app, await plan_of(client)))
            assert (await ask(client, "pause_queue", **PAUSE, confirmation=late))["is_changed"]


def test_without_a_terminal_nothing_is_agreed_to(app: App, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    import asyncio

    async def plan() -> str:
        async with Client(make_server(app, Access(("admin",)))) as client:
            return await plan_of(client)

    assert run(["confirm", asyncio.run(plan()), "--url", url]) == 2
    assert "not a terminal" in capsys.readouterr().err
    assert run(["confirm", "made-up", "--url", url]) == 2
    assert "not made on this database" in capsys.readouterr().err


async def test_no_person_is_asked_where_the_operator_said_so(app: App) -> None:
    async with Client(make_server(app, Access(("admin",), confirm=False))) as client:
        assert (await ask(client, "pause_queue", **PAUSE))["is_changed"]


async def test_a_job_of_ones_own_is_cancelled_without_asking(app: App) -> None:
    foreign = app.enqueue("k")
    async with Client(make_server(app, Access(("use",)))) as client:
        own = (await ask(client, "enqueue", kind="k"))["job_id"]
        assert (await ask(client, "cancel", job_id=own, dry_run=True))["would_cancel"] == own
        assert (await ask(client, "cancel", job_id=own))["answer"] == "cancelled"
        assert '"confirmation_required"' in await refused(client, "cancel", job_id=foreign.id)

    assert app.get(foreign.id).state == "queued"

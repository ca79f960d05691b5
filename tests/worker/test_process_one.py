"""A worker as process 1, as in a container without an init: signals are heard, orphans reaped, the exit code is right.

A PID namespace of the test's own makes it so; the test watches from outside, where every process has another number.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tenure import App, Job
from tests.waiting import wait_until
from tests.worker.crews import ROOT

_UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")
_TASKS = """
import asyncio, os, subprocess
from pathlib import Path
import tenure

app = tenure.App()

@app.job
async def hold(payload: dict, ctx: tenure.Context) -> None:
    Path(payload["begun"]).touch()
    await ctx.stopping.wait_async()
    ctx.check()

@app.job
def breed(payload: dict) -> None:
    script = 'while [ ! -e "$0" ]; do sleep 0.02; done'
    subprocess.run(["sh", "-c", f"({script}) </dev/null >/dev/null 2>&1 &", payload["until"]], check=True)
"""


def _why_not() -> str | None:
    """Why no namespace can be made here; None if one can."""
    try:
        made = subprocess.run([*_UNSHARE, "true"], capture_output=True, timeout=20, check=False)
    except FileNotFoundError:
        return "there is no unshare on this machine"
    return (made.stderr.decode().strip() or "unshare failed") if made.returncode else None


class Container:
    """A PID namespace with `tenure worker` as its process 1."""

    def __init__(self, folder: Path, *args: str) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{folder}:{ROOT / 'src'}",
            "TENURE_URL": f"sqlite:///{folder}/jobs.db",
        }
        with (folder / "worker.log").open("wb") as log:
            self.outside = subprocess.Popen(
                [*_UNSHARE, "--kill-child", sys.executable, "-m", "tenure.cli.main", "worker", *args],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
            )

    def init(self) -> psutil.Process:
        """Process 1, by the number it has outside."""
        wait_until(lambda: psutil.Process(self.outside.pid).children())
        return psutil.Process(self.outside.pid).children()[0]

    def workers(self) -> list[psutil.Process]:
        return [one for one in self.children() if "python" in _name(one)]

    def children(self) -> list[psutil.Process]:
        """All that belongs to process 1, zombies among them."""
        return self.init().children()

    def end(self) -> None:
        self.outside.kill()
        self.outside.wait()


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    reason = _why_not()
    if reason is not None:
        pytest.skip(f"no PID namespace can be made: {reason}")
    (tmp_path / "tasks.py").write_text(_TASKS)
    return tmp_path


@pytest.fixture
def app(folder: Path) -> Iterator[App]:
    with App(f"sqlite:///{folder}/jobs.db", actor="test") as app:
        app.migrate()
        yield app


@pytest.fixture
def containers() -> Iterator[list[Container]]:
    started: list[Container] = []
    yield started
    for each in started:
        each.end()


def start(containers: list[Container], folder: Path, *args: str) -> Container:
    containers.append(Container(folder, *args))
    return containers[-1]


def job(app: App, job_id: str) -> Job:
    return app.get(job_id)


def test_a_stop_reaches_a_worker_as_process_one_and_the_job_is_handed_back(
    containers: list[Container], folder: Path, app: App
) -> None:
    held = app.enqueue("hold", {"begun": str(folder / "begun")}).id
    container = start(containers, folder, "tasks:app")
    wait_until((folder / "begun").exists)

    container.init().send_signal(signal.SIGTERM)

    assert container.outside.wait() == 0, (folder / "worker.log").read_text()
    found = job(app, held)
    assert (found.state, found.attempt, found.token) == ("queued", 0, 1)
    assert app.workers.all() == []


def test_process_one_reaps_what_handlers_left_behind(containers: list[Container], folder: Path, app: App) -> None:
    until = folder / "until"
    bred = [app.enqueue("breed", {"until": str(until)}).id for _ in range(5)]
    container = start(containers, folder, "tasks:app")
    wait_until(lambda: all(job(app, one).state == "succeeded" for one in bred))
    wait_until(lambda: len(container.children()) == 1 + len(bred))  # orphans come to process 1

    until.touch()

    wait_until(lambda: len(container.children()) == 1)
    assert [_name(one) for one in container.children()] == [_name(one) for one in container.workers()]
    container.init().send_signal(signal.SIGTERM)
    assert container.outside.wait() == 0, (folder / "worker.log").read_text()


def test_many_workers_under_process_one_are_replaced_and_stopped(
    containers: list[Container], folder: Path, app: App
) -> None:
    container = start(containers, folder, "tasks:app", "--processes", "2")
    wait_until(lambda: len(app.workers.all()) == 2)
    first = container.workers()[0]
    first.kill()
    wait_until(lambda: len(container.workers()) == 2 and first not in container.workers())
    wait_until(lambda: len(app.workers.all()) == 3)  # the killed one could not say goodbye
    held = app.enqueue("hold", {"begun": str(folder / "begun")}).id
    wait_until((folder / "begun").exists)

    container.init().send_signal(signal.SIGTERM)

    assert container.outside.wait() == 0, (folder / "worker.log").read_text()
    assert (job(app, held).state, job(app, held).attempt) == ("queued", 0)
    assert len(app.workers.all()) == 1


def test_wrong_arguments_end_process_one_with_their_code(containers: list[Container], folder: Path) -> None:
    container = start(containers, folder, "nowhere:app")

    assert container.outside.wait() == 2

# ruff: noqa: INP001, T201 - a script, which says what it wrote
"""Record the screens of the docs: real commands in a real terminal (tmux), drawn as SVG and kept as text.

    python docs/screens/record.py            all of them, in about a minute
    python docs/screens/record.py top doctor some of them

Nothing is posed but the jobs: a few handlers, two workers, a mail server that is down.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tenure import App

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
SOCKET = f"tenure-screens-{os.getpid()}"
WAIT_SECONDS = 60.0

TASKS = """\
import time

import tenure

app = tenure.App()


@app.job(queue="mail", max_attempts=2)
def welcome(user_id: int) -> None:
    raise ConnectionError(f"smtp.example.com: connection {user_id} refused")


@app.job(queue="video")
def transcode(minutes: int, ctx: tenure.Context) -> str:
    for minute in range(minutes):
        ctx.progress({"minute": minute, "of": minutes})
        time.sleep(1)
    return "done"


@app.job
def thumbnail(number: int) -> str:
    time.sleep(0.02)
    return f"{number}.png"
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """One screen: what is typed, how large the window is, and how one sees that it is complete."""

    name: str
    command: str
    columns: int
    rows: int
    until: str
    """What stands on the screen when it is to be kept."""
    settle: float = 0.3


def main(wanted: list[str]) -> None:
    """Record the scenes that are asked for, or all."""
    if shutil.which("tmux") is None:
        sys.exit("tmux is needed to record the screens: apt-get install tmux")
    with tempfile.TemporaryDirectory(prefix="tenure-screens-") as name, terminal():
        folder = Path(name)
        for scene in scenes(folder):
            if not wanted or scene.name in wanted:
                record(scene, folder)
                print(f"{scene.name}.svg", file=sys.stderr)


def scenes(folder: Path) -> Iterator[Scene]:
    """Each scene in turn; what it needs is set up just before."""
    yield Scene("demo", "tenure demo", 110, 52, "seconds. Next")
    with staged(folder) as dead:
        yield Scene("top", "tenure top", 110, 33, "transcode", settle=2.0)
        yield Scene("jobs-show", f"tenure jobs show {dead}", 100, 48, "Dead letters")
        yield Scene("jobs-explain", "tenure jobs explain $(cat later)", 100, 16, "fix")
        yield Scene("dlq-groups", "tenure dlq groups", 100, 8, "Run them again")
        yield Scene("stats", "tenure stats", 100, 40, "6. What ran", settle=0.5)
        yield Scene("doctor", "tenure doctor", 100, 30, "To fix", settle=1.0)


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[str]:
    """A database with work in it and two workers on it. Yields the id of a job that died."""
    (folder / "tasks.py").write_text(TASKS)
    url = f"sqlite:///{folder / 'jobs.db'}"
    environment = {**os.environ, "TENURE_URL": url}
    with App(url, actor="screens") as app:
        app.queues.set("mail", max_attempts=2, events=True)
        app.queues.set("video", lease_seconds=15)
        app.queues.set("bulk")
        mails = [app.enqueue("welcome", number, queue="mail", max_attempts=1 + number % 2).id for number in range(6)]
        for minutes in (90, 45, 60, 30):
            app.enqueue("transcode", minutes, queue="video")
        app.enqueue_many([app.new_job("thumbnail", number) for number in range(400)])
        app.queues.pause("bulk", reason="the disk is being replaced")
        (folder / "later").write_text(app.enqueue("thumbnail", 1, queue="bulk", delay=3600).id)
        command = [str(BIN / "tenure"), "worker", "tasks:app", "--concurrency", "2", "--log-level", "error"]
        workers = [subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) for _ in range(2)]
        try:
            wait(lambda: bool(app.dead_letters.all().items), "a job dies")
            wait(lambda: len(app.jobs(state="running", kind="transcode").items) >= 2, "a job runs")
            yield app.dead_letters.all(job_id=mails[0]).items[0].job_id
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


@contextlib.contextmanager
def terminal() -> Iterator[None]:
    """A tmux server of our own, gone at the end."""
    try:
        yield
    finally:
        subprocess.run(["tmux", "-L", SOCKET, "kill-server"], capture_output=True, check=False)


def record(scene: Scene, folder: Path) -> None:
    """Type the command, wait for what it shows, and keep the screen."""
    shell = f"cd {shlex.quote(str(folder))} && export PATH={shlex.quote(str(BIN))}:$PATH PS1='$ ' && exec sh"
    environment = [
        item
        for name, value in (
            ("TENURE_URL", f"sqlite:///{folder / 'jobs.db'}"),
            ("COLORTERM", "truecolor"),
            ("NO_COLOR", ""),
        )
        for item in ("-e", f"{name}={value}")
    ]
    size = ["-x", str(scene.columns), "-y", str(scene.rows)]
    tmux("new-session", "-d", "-s", scene.name, *size, *environment, "sh", "-c", shell)
    wait(lambda: "$" in tmux("capture-pane", "-p", "-t", scene.name), "the shell is there")
    tmux("send-keys", "-t", scene.name, scene.command, "Enter")
    wait(lambda: scene.until in tmux("capture-pane", "-p", "-t", scene.name), f"{scene.name} shows {scene.until!r}")
    time.sleep(scene.settle)
    screen = tmux("capture-pane", "-p", "-e", "-t", scene.name).rstrip("\n")
    tmux("kill-session", "-t", scene.name)
    shown = Text.from_ansi(re.sub(r"\n\$ *$", "", screen))
    (HERE / f"{scene.name}.txt").write_text(re.sub(r" +$", "", shown.plain, flags=re.MULTILINE) + "\n")
    paper = Console(record=True, width=scene.columns, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115, PTH123
    paper.print(shown, soft_wrap=True)
    drawn = paper.export_svg(title=scene.command.split("$(")[0].strip(), unique_id=f"tenure-{scene.name}")
    (HERE / f"{scene.name}.svg").write_text(without_remote_fonts(drawn))


def without_remote_fonts(drawn: str) -> str:
    """The picture as it is, but without a request to another server for the letters."""
    local = re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    return local.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")


def tmux(*args: str) -> str:
    """Ask our tmux server."""
    done = subprocess.run(["tmux", "-L", SOCKET, *args], capture_output=True, text=True, check=True)
    return done.stdout


def wait(happened: Callable[[], bool], what: str) -> None:
    """Until it happened."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not happened():
        if time.monotonic() > deadline:
            sys.exit(f"Waited too long: {what}.")
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1:])

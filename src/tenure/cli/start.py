"""`tenure init` and `tenure dev`: the first steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from tenure.cli.group import verbs
from tenure.cli.loading import default_target
from tenure.cli.options import DEFAULT_FILE
from tenure.cli.screen import Screen
from tenure.cli.serve import console_beside
from tenure.cli.work import LogLevel, OwnUrl, Target
from tenure.errors import ConfigError, IllegalMove
from tenure.model.plural import counted

app = verbs()

TASKS = f"""\
import tenure

app = tenure.App("sqlite:///{DEFAULT_FILE}")  # postgresql://… for many machines


@app.job(max_attempts=5)
def greet(name: str, ctx: tenure.Context) -> str:
    ctx.logger.info("attempt %d to greet %s", ctx.attempt, name)
    ctx.set_result_summary(f"greeted {{name}}")
    if not name:
        raise ValueError("there is no one to greet")  # retried with backoff, then a dead letter
    return f"Hello, {{name}}!"
"""

NEXT = """\
{path} is written. Now:

  tenure dev                       run it, reloading when you save
  tenure enqueue greet '"Ada"'     in another terminal: one job
  tenure jobs ls                   what happened to it
  tenure enqueue greet '""'        one that fails
  tenure jobs explain ID           why a job is not running
  tenure jobs cancel ID            give it up
"""

LOOK_SECONDS = 0.3
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
MOST_FILES = 5_000


@app.command()
def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("tasks.py"),
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a small tasks.py to begin with."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(TASKS)
    except FileExistsError:
        raise IllegalMove(
            f"{path} is there already and was left as it is. Name another file, or use --force."
        ) from None
    except OSError as exc:
        raise ConfigError(f"{path} could not be written: {exc.strerror}.") from exc
    Screen().note(NEXT.format(path=path).rstrip(), style="")


@app.command()
def dev(
    target: Target = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", "-q", metavar="NAME", help="NAME, or NAME=WEIGHT; may be repeated. The app's own if left out."
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", metavar="N", min=1, help="Handlers at once.")] = 10,
    log_level: LogLevel = "debug",
    console: Annotated[bool, typer.Option("--console/--no-console", help="Serve the console and the API too.")] = True,
    url: OwnUrl = None,
) -> None:
    """Run a worker that reloads when files change, with a live log and the console. Ctrl-C ends it."""
    target = target or default_target()
    if target is None:
        raise ConfigError(
            "There is no tasks.py here. Write one with `tenure init`, or name an app: `tenure dev shop:app`."
        )
    command = [sys.executable, "-P", "-m", "tenure.cli.main", "worker", target]
    command += ["--concurrency", str(concurrency), "--log-level", log_level, "--grace", "2"]
    command += [part for one in queue or () for part in ("--queue", one)]
    with console_beside(target, url) if console else nullcontext():
        _Reloader(command, Path.cwd(), url).run()


class _Reloader:
    """Keeps one worker running, and starts it anew when a Python file beneath the folder changes."""

    def __init__(self, command: list[str], folder: Path, url: str | None) -> None:
        self._command = command
        from tenure.worker.supervisor import PARENT_VARIABLE

        # The URL goes by the environment: it may hold a password, and others see arguments in `ps`.
        self._environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        if url is not None:
            self._environment["TENURE_URL"] = url
        self._folder = folder
        self._screen = Screen()
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):  # told to end, or its terminal was closed
            signal.signal(number, _as_interrupt)
        seen = stamps(self._folder)
        self._screen.note(f"tenure dev: watching {counted(len(seen), 'file')} beneath {self._folder}; Ctrl-C ends it.")
        self._start()
        try:
            while True:
                time.sleep(LOOK_SECONDS)
                now = stamps(self._folder)
                if now != seen:
                    changed = sorted(str(path) for path, _ in now ^ seen)
                    self._screen.note(f"tenure dev: {changed[0]} changed, so the worker starts anew.", "yellow")
                    seen = now
                    self._stop()
                    self._start()
                elif self._child is not None and self._child.poll() is not None:
                    code = self._child.returncode
                    self._child = None
                    self._screen.note(
                        f"tenure dev: the worker ended with {code}; save a file to start it again.", "red"
                    )
        except KeyboardInterrupt:
            self._stop()

    def _start(self) -> None:
        # A session of its own: Ctrl-C reaches us only, and the worker gets one orderly SIGTERM.
        self._child = subprocess.Popen(self._command, start_new_session=True, env=self._environment)

    def _stop(self) -> None:
        if self._child is None:
            return
        self._child.terminate()
        try:
            self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child = None


def stamps(folder: Path) -> set[tuple[str, int]]:
    """Every Python file beneath a folder with the time of its last change. Hidden and installed ones are left out."""
    found: set[tuple[str, int]] = set()
    for top, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in SKIPPED and not Path(top, name, "pyvenv.cfg").exists()
        ]
        for name in files:
            if name.endswith(".py"):
                path = Path(top, name)
                try:
                    found.add((str(path.relative_to(folder)), path.stat().st_mtime_ns))
                except OSError:  # gone between the look and the question
                    continue
        if len(found) > MOST_FILES:
            break
    return found


def _as_interrupt(number: int, frame: object) -> None:  # noqa: ARG001
    raise KeyboardInterrupt

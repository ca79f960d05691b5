# ruff: noqa: INP001 - a script; the folder is no package
"""The real path of one job, counted: which functions in which files of Tenure it passes, on each engine.

    python -m docs.trace                     both engines; PostgreSQL is started for it, if there are binaries
    python -m docs.trace --engine sqlite
    python -m docs.trace --postgres URL      on this server, in a database of its own
    python -m docs.trace --write             also write the counts into docs/architecture.md
    python -m docs.trace --check             end with 1 if a path is longer than the limits

A worker process waits for work, another process enqueues one job, and `sys.setprofile` records in both until the job is
settled, in all threads. That is done several times after a warm-up, and only functions that every repetition passed
count, so that a heartbeat or a poll that happens to fall into one of them does not. Comprehensions and lambdas belong
to the function around them. It needs nothing but Tenure's public API, and a count of finished jobs.
"""

from __future__ import annotations

import argparse
import json
import mmap
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import tenure

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = f"{Path(tenure.__file__).parent}/"
PAGE: Final = ROOT / "docs" / "architecture.md"
REGION: Final = re.compile(r"(<!-- traced -->\n).*?(<!-- end of traced -->)", re.DOTALL)
ENGINES: Final = {"sqlite": "SQLite", "postgres": "PostgreSQL"}

REPETITIONS: Final = 12
QUIET_SECONDS: Final = 0.3
"""Between repetitions: the worker goes back to waiting."""
TAIL_SECONDS: Final = 0.01
"""After the commit: the worker still takes the reply in. Shorter than a listener's poll, which is no part of it."""
PATIENCE_SECONDS: Final = 30.0

LONGEST: Final = {"sqlite": (86, 30), "postgres": (71, 26)}
"""Functions and files at most: what was reached, and what `make check` keeps. Lower them when a path gets shorter; the
aim is 70 in 20. A loaded machine counts too few rather than too many: only what every repetition passed is counted."""


class Step(NamedTuple):
    """One function that the job passed."""

    process: str
    file: str
    function: str


class Recorder:
    """Records calls under src/tenure while the shared byte is not 0. Its value is the repetition."""

    def __init__(self, flag: mmap.mmap) -> None:
        self._flag = flag
        self._inside: dict[CodeType, tuple[str, str] | None] = {}
        self.found: dict[tuple[int, str, str], None] = {}

    def install(self) -> None:
        """Watch this thread and all that start after it."""
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def remove(self) -> None:
        """Stop watching."""
        sys.setprofile(None)
        threading.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not (repetition := self._flag[0]):
            return
        code = frame.f_code
        if code not in self._inside:
            self._inside[code] = _place(code)
        place = self._inside[code]
        if place is not None:
            self.found.setdefault((repetition, *place))


def _place(code: CodeType) -> tuple[str, str] | None:
    """File and function, if it is one of Tenure's."""
    if not code.co_filename.startswith(SOURCE) or code.co_name.startswith("<"):
        return None
    return code.co_filename.removeprefix(SOURCE), code.co_qualname


# --- the two processes ------------------------------------------------------------------------------------------------


def work(url: str, flag: Path, out: Path) -> None:
    """Be the worker, until SIGTERM; then write down the calls."""
    recorder = Recorder(_mapped(flag))
    recorder.install()
    app = tenure.App(url)
    _noop(app)
    app.run_worker(["default"])
    recorder.remove()
    out.write_text(json.dumps(list(recorder.found)))


def trace(url: str, folder: Path) -> list[Step]:
    """Enqueue jobs for a worker in another process; gives the functions that each of them passed, in order."""
    from benchmarks.tenure_tables import Tables

    flag, out = folder / "flag", folder / "calls.json"
    flag.write_bytes(b"\0")
    shared = _mapped(flag)
    own = mmap.mmap(-1, 1)
    recorder = Recorder(own)
    recorder.install()  # before the store has threads
    with tenure.App(url) as app:
        app.migrate()
        noop = _noop(app)
        tables = Tables(url)
        with _process([sys.executable, "-m", "docs.trace", "--worker", url, str(flag), str(out)]):
            noop.enqueue({"i": 0})
            _wait(lambda: tables.count("finished") == 1)
            for repetition in range(1, REPETITIONS + 1):
                time.sleep(QUIET_SECONDS)
                own[0] = shared[0] = repetition
                noop.enqueue({"i": repetition})
                _wait(lambda done=repetition + 1: tables.count("finished") == done)  # type: ignore[misc]
                time.sleep(TAIL_SECONDS)
                own[0] = shared[0] = 0
            recorder.remove()
        tables.close()
    worker = [(int(number), str(file), str(name)) for number, file, name in json.loads(out.read_text())]
    return [*_steps("client", list(recorder.found)), *_steps("worker", worker)]


def _steps(process: str, calls: list[tuple[int, str, str]]) -> list[Step]:
    """The functions of every repetition, in the order of the last one."""
    by_number: dict[int, list[tuple[str, str]]] = {}
    for number, file, function in calls:
        by_number.setdefault(number, []).append((file, function))
    if len(by_number) < REPETITIONS:
        raise SystemExit(f"docs.trace: the {process} was seen in {len(by_number)} of {REPETITIONS} repetitions.")
    always = set.intersection(*map(set, by_number.values()))
    return [Step(process, *place) for place in by_number[REPETITIONS] if place in always]


def _noop(app: Any) -> Any:
    async def noop(job: dict[str, Any]) -> None: ...

    return app.job(kind="noop", queue="default")(noop)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 1)


@contextmanager
def _process(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def _wait(is_reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_reached():
        if time.monotonic() > deadline:
            raise SystemExit(f"docs.trace: the job was not settled within {PATIENCE_SECONDS:.0f} s.")
        time.sleep(0.001)


# --- the report -------------------------------------------------------------------------------------------------------


def functions(steps: list[Step]) -> int:
    """How many distinct functions, over both processes."""
    return len({(step.file, step.function) for step in steps})


def files(steps: list[Step]) -> list[str]:
    """The files, in the order in which the job comes to them."""
    return list(dict.fromkeys(step.file for step in steps))


def region(found: dict[str, list[Step]]) -> str:
    """The part of the page: one paragraph and one list per engine."""
    parts = []
    for engine, steps in found.items():
        parts.append(f"**{ENGINES[engine]}: {functions(steps)} functions in {len(files(steps))} files.**\n")
        for process in ("client", "worker"):
            parts.append(f"In the {process}'s process:\n")
            for file in files([step for step in steps if step.process == process]):
                names = [f"`{s.function}`" for s in steps if (s.process, s.file) == (process, file)]
                parts.append(f"- `{file}`: {', '.join(names)}")
            parts.append("")
    return "\n".join(parts).strip()


@contextmanager
def _store(engine: str, folder: Path, given: str | None) -> Iterator[str]:
    if engine == "sqlite":
        yield f"sqlite:///{folder / 'jobs.db'}"
        return
    from benchmarks import servers

    folder.chmod(0o755)
    with servers.postgres(folder, given) as server, servers.fresh_database(server, "tenure_trace") as url:
        yield url


def main(argv: list[str]) -> int:
    """Trace, print, and write or check."""
    parser = argparse.ArgumentParser(prog="python -m docs.trace", description="Count the path of one job.")
    parser.add_argument("--engine", choices=list(ENGINES), help="one engine; both by default")
    parser.add_argument("--postgres", metavar="URL", help="use this server instead of a throw-away one")
    parser.add_argument("--write", action="store_true", help=f"write the counts into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--check", action="store_true", help="end with 1 if a path is longer than the limits")
    parser.add_argument("--worker", nargs=3, metavar=("URL", "FLAG", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        work(options.worker[0], Path(options.worker[1]), Path(options.worker[2]))
        return 0
    found: dict[str, list[Step]] = {}
    for engine in [options.engine] if options.engine else ENGINES:
        with (
            tempfile.TemporaryDirectory(prefix="tenure-trace-", dir="/var/tmp") as folder,
            _store(engine, Path(folder), options.postgres) as url,
        ):
            found[engine] = trace(url, Path(folder))
    sys.stdout.write(region(found) + "\n")
    if options.write:
        page = PAGE.read_text()
        PAGE.write_text(REGION.sub(lambda match: f"{match[1]}\n{region(found)}\n\n{match[2]}", page))
    too_long = [e for e, s in found.items() if functions(s) > LONGEST[e][0] or len(files(s)) > LONGEST[e][1]]
    for engine in too_long:
        most, most_files = LONGEST[engine]
        sys.stderr.write(f"{ENGINES[engine]}: a job passes more than {most} functions or {most_files} files\n")
    return 1 if too_long and options.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

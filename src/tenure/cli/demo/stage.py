"""The stage of `tenure demo`: real worker processes under names, and the means to hurt them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tenure.cli.demo.tasks import FOLDER_VARIABLE, QUEUE_VARIABLE, WORKER_VARIABLE
from tenure.errors import TenureError

STYLES = {"Ann": "magenta", "Bea": "green", "Cid": "cyan"}
_LOCKS = Path("/proc/locks")


class DemoFailed(TenureError):
    """Something that the demo shows did not happen."""

    code = "demo_failed"


class Actor:
    """One worker process. Its log is read as it is written, so that what it says can be shown and checked."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self.mark = environment[WORKER_VARIABLE]
        """What its handlers write to say who they work for; stays when names are swapped."""
        self.log_events: list[dict[str, Any]] = []
        self.end: int | None = None
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, name=f"log of {name}", daemon=True)
        self._reader.start()

    def said(self, event: str, job_id: str | None = None) -> dict[str, Any] | None:
        """The first log event of this name, about this job if one is given."""
        return next(
            (one for one in self.log_events if one.get("event") == event and job_id in {None, one.get("job")}), None
        )

    @property
    def worker_id(self) -> str | None:
        """Under which name the database knows it, once it has said so."""
        started = self.said("worker_started")
        return None if started is None else str(started["worker"])

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def freeze(self) -> None:
        """Stop it for a while, where it stands; `signal(SIGCONT)` lets it go on."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            freeze(self.pid)

    def wait(self, seconds: float) -> int:
        """Its exit code; one that does not end in time is killed."""
        try:
            self.end = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.end = self._process.wait()
        self._reader.join(2)
        if self._process.stderr is not None:
            self._process.stderr.close()
        return self.end

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            try:
                self.log_events.append(json.loads(line))
            except ValueError:
                self.log_events.append({"event": "said", "message": line.decode(errors="replace").rstrip()})


class Stage:
    """Starts actors, and sees to it that none is left."""

    def __init__(self, url: str, folder: Path, queue: str) -> None:
        self._url = url
        self._environment = {
            **os.environ,
            "TENURE_URL": url,
            FOLDER_VARIABLE: str(folder),
            QUEUE_VARIABLE: queue,
            "PYTHONWARNINGS": "ignore",
            "TENURE_SUPERVISOR": str(os.getpid()),  # if we are killed, they are told to stop
        }
        self.queue = queue
        self.actors: dict[str, Actor] = {}

    def start(self, name: str, *, concurrency: int) -> Actor:
        """A worker process, exactly as `tenure worker` starts one."""
        command = [sys.executable, "-P", "-m", "tenure.cli.main", "worker", "tenure.cli.demo.tasks:app"]
        command += ["--queue", self.queue, "--concurrency", str(concurrency), "--prefetch", "0"]
        command += ["--poll", "0.2", "--grace", "3", "--log", "json", "--log-level", "debug"]
        actor = self.actors[name] = Actor(name, command, self._environment | {WORKER_VARIABLE: str(len(self.actors))})
        return actor

    def swap(self, one: str, other: str) -> None:
        """Let two actors change names."""
        self.actors[one], self.actors[other] = self.actors[other], self.actors[one]
        self.actors[one].name, self.actors[other].name = one, other

    def named(self, worker_id: str | None) -> str:
        """The name of a worker that the database shows by its id."""
        return next(
            (actor.name for actor in self.actors.values() if worker_id and f"-{actor.pid}-" in worker_id),
            worker_id or "no worker",
        )

    def last_words(self) -> str:
        """What actors said last that have ended, or complained; for when the story goes wrong."""
        told = []
        for actor in self.actors.values():
            events = actor.log_events
            said = [one for one in events if one.get("level") in {"warning", "error"} or one["event"] == "said"]
            word = f": {said[-1].get('message') or said[-1]['event']}" if said else ""
            if said or actor.has_ended:
                told.append(f"{actor.name}{' has ended' if actor.has_ended else ''}{word}")
        return "; ".join(told)

    def close(self) -> None:
        """End the processes that are left."""
        for actor in self.actors.values():
            if actor.end is None:
                actor.signal(signal.SIGCONT)
                actor.signal(signal.SIGKILL)
                actor.wait(5)


@contextmanager
def stage(url: str, folder: Path, queue: str) -> Iterator[Stage]:
    """A stage, cleared at the end."""
    made = Stage(url, folder, queue)
    try:
        yield made
    finally:
        made.close()


def until(what: str, happened: Callable[[], Any], deadline: float, *, every: float = 0.03) -> Any:
    """Wait for something to become true and answer it. Raises: DemoFailed."""
    while True:
        found = happened()
        if found:
            return found
        if time.monotonic() >= deadline:
            raise DemoFailed(f"This was to happen in the demo and did not: {what}.")
        time.sleep(every)


def freeze(pid: int) -> None:
    """SIGSTOP to a child of ours, at a moment when it does not write to a SQLite file: one that stands still in the
    middle of that holds up everybody else, until it goes on. Where the system does not tell, at any moment."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if not _writes(pid):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)


def _writes(pid: int) -> bool:
    """Whether a process holds a lock that excludes others.

    A line reads `1: POSIX ADVISORY WRITE <pid> <file> <from> <to>`."""
    try:
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    return any(fields[1:5] == ["POSIX", "ADVISORY", "WRITE", str(pid)] for fields in map(str.split, lines))

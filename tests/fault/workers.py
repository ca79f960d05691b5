"""`tenure worker` as a real process, started again whenever it dies, as an init system would."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tenure.model.ids import JobId
from tenure.model.job import Job
from tenure.model.state import ACTIVE
from tenure.store.contract import Store
from tenure.store.queries import CountJobs, ListJobs
from tests.fault.scale import PATIENCE, QUEUE

ROOT = Path(__file__).parents[2]


@dataclass
class Restarted:
    """One command line of `tenure worker`. `tend` starts it again if it has ended."""

    url: str
    notes: Path
    options: Sequence[str]
    nice: int = 0
    app: str = "tests.fault.children.faulty:app"
    starts: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def tend(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self._kill_the_rest()
        self.starts += 1
        command = [sys.executable, "-m", "tenure.cli.main", "worker", self.app]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*(["nice", "-n", str(self.nice)] if self.nice else []), *command, "--url", self.url, *self.options],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # its group is what `_kill_the_rest` ends
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
                    "TENURE_TEST_NOTES": str(self.notes),
                    "TENURE_TEST_PID": str(os.getpid()),
                },
            )

    @property
    def log(self) -> Path:
        return self.notes.with_suffix(".log")

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    def kill(self) -> None:
        """As a machine that loses power: the worker and everything that it started, at once."""
        if self.process is not None:
            below = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
            self.process.kill()
            for one in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        self._kill_the_rest()

    def _kill_the_rest(self) -> None:
        """Workers whose supervisor was killed are of its group and would go on for a grace period."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextlib.contextmanager
def restarted(
    url: str, notes: Path, *options: str, nice: int = 0, app: str = "tests.fault.children.faulty:app"
) -> Iterator[Restarted]:
    """A worker that does not outlive the test."""
    one = Restarted(url, notes, options, nice, app)
    try:
        one.tend()
        yield one
    finally:
        one.kill()


def drain(store: Store, workers: Sequence[Restarted], seconds: float = PATIENCE) -> None:
    """Keep the workers running until every job has ended."""
    deadline = time.monotonic() + seconds
    while left := store.do(CountJobs(states=sorted(ACTIVE))):
        for one in workers:
            one.tend()
        assert time.monotonic() < deadline, f"not drained within {seconds:.0f} s: {left}\n{workers[0].tail()}"
        time.sleep(0.05)


def all_jobs(store: Store) -> list[Job]:
    found: list[Job] = []
    after: str | None = None
    while True:
        page = store.do(ListJobs(queues=[QUEUE], limit=1000, after=after))
        found += page.items
        after = page.next
        if after is None:
            return found


def starts(notes: Path, kind: str) -> list[tuple[JobId, int, int]]:
    """What handlers of a kind wrote down when they started: job, token, process."""
    if not notes.exists():
        return []
    lines = [line.split() for line in notes.read_text().splitlines() if line.startswith(f"{kind} ")]
    return [(JobId(job_id), int(token), int(pid)) for _, job_id, token, pid in lines]


def starts_by_job(notes: Path, kind: str) -> Counter[JobId]:
    return Counter(job_id for job_id, _, _ in starts(notes, kind))

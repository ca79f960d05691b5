"""A process that enqueues one job, and can be held at a fault point on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from tenure.model import failpoints
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import NewJob
from tenure.store.contract import Enqueue
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import job, put

BEFORE_COMMIT = "after_hand_over_before_commit"
BEFORE_WORD = "after_hand_over_before_word"


def prime(store: SqliteStore) -> None:
    """Let this process know on what terms it enqueues, as one does that did so before. The queue `elsewhere` must
    exist."""
    store.do(Enqueue([NewJob(new_job_id(), "work", delay_seconds=1_000_000)]))
    store.do(Enqueue([job(queue="elsewhere")]))


def put_as_before(store: SqliteStore, payload: str = "{}", before: Callable[[], object] = lambda: None) -> JobId:
    """Enqueue one job as a process does that has enqueued before; its id. `before`: what comes right before that."""
    prime(store)
    before()
    return put(store, payload=payload)


class Enqueuer:
    """Enqueues one job in a forked process. With a point it waits there, until it is let go on or killed."""

    def __init__(self, act: Callable[[], Any], point: str | None = None) -> None:
        self._there, said = os.pipe()
        told, self._go = os.pipe()
        self._is_over = False
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._there)
                os.close(self._go)

                def wait() -> None:
                    os.write(said, b".")
                    os.read(told, 1)

                if point is not None:
                    failpoints.arm(point, wait)
                else:
                    wait()
                act()
            finally:
                os._exit(0)
        os.close(said)
        os.close(told)

    def wait_there(self) -> None:
        """Until it is at the point, or before its job if there is none."""
        assert os.read(self._there, 1) == b".", "it ended without coming there"

    def go_on(self) -> None:
        """Let it go on, without waiting for it."""
        os.write(self._go, b".")

    def finish(self) -> None:
        """Let it go on, and wait for its end."""
        self.go_on()
        self._end()

    def kill(self) -> None:
        """Kill it where it is."""
        os.kill(self.pid, signal.SIGKILL)
        self._end()

    def wait(self) -> None:
        """Until it has ended."""
        self._end()

    def _end(self) -> None:
        os.waitpid(self.pid, 0)
        os.close(self._there)
        os.close(self._go)

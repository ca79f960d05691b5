"""Space kept free for jobs that are held: on a full disk new work is refused, but what was done can still be written.

A file beside the database takes up some megabytes. A process makes it before its first claim, because a worker will
have outcomes to write. When an outcome, a heartbeat or a prune finds the disk full, the file is cut to nothing and the
request repeated. From then on the file's emptiness tells every process that what is free belongs to outcomes: whatever
grows the database, a claim among it, is refused until there is room again for the file and twice as much besides.

It lasts: the WAL is moved into the database file every 1,000 pages and then overwritten from its start, so outcomes
take up little new space.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from tenure.errors import DiskFull
from tenure.store import admin as ordered
from tenure.store import budgets as budgeted
from tenure.store import contract
from tenure.store import flow as flowing
from tenure.store import memory as remembered
from tenure.store import metrics as metered
from tenure.store import schedules as timed
from tenure.store import streams as streamed
from tenure.store import workflows as graphed

T = TypeVar("T")

BYTES: Final = 8 * 1024 * 1024
ROOM_BYTES: Final = 2 * BYTES
"""So much must be free before the file is made: keeping space must not be what fills the disk."""
LOOK_SECONDS: Final = 0.25
"""How long another process may go on without noticing that the reserve is spent."""

_CLAIMS: Final = frozenset({contract.Claim, contract.Exchange})
_GROWS: Final = frozenset(
    {contract.Enqueue, contract.Claim, contract.Clone, contract.EditJob, timed.TickSchedule}
    | {flowing.FillGroup, flowing.Signal, graphed.StartWorkflow, graphed.JoinWorkflow, budgeted.ReserveBudget}
    | {ordered.AppendEvents, streamed.AppendStreams, metered.RollUp}
    | {remembered.WriteAgentEvents, remembered.WriteMemories}
)
_MAY_SPEND: Final = frozenset(
    {
        contract.Settle,
        contract.Exchange,
        contract.Heartbeat,
        contract.Start,
        contract.Prune,
        ordered.RecordEffect,
        flowing.RecordSteps,
        budgeted.SettleBudget,
        ordered.ResolveEffect,
        ordered.ReleaseLease,
    }
)


class Reserve:
    """The reserve of one database file, as one process sees it. Thread-safe: every step may be taken twice."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + "-reserve")
        self._database = path
        self._is_kept = False
        self._is_spent = False
        self._look_at = 0.0

    def admit(self, request: contract.Request[T]) -> contract.Request[T]:
        """The request as it may go on. While the reserve is spent an exchange claims nothing.

        Raises:
            DiskFull: it would take up space that is left to outcomes.
        """
        kind = type(request)
        if not self._is_kept and kind in _CLAIMS:
            self._is_kept = True
            self._fill()
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_SECONDS
            try:
                found = self.path.lstat()
                self._is_spent = found.st_size == 0 and stat.S_ISREG(found.st_mode) and not self._fill()
            except OSError:  # there never was room for one
                self._is_spent = False
        if not self._is_spent:
            return request
        if isinstance(request, contract.Exchange) and request.claim is not None:
            if not request.outcomes:
                raise self._refusal()
            return cast(contract.Request[T], replace(request, claim=None))
        if kind in _GROWS:
            raise self._refusal()
        return request

    def explain(self, exchanged: Any) -> contract.Exchanged:
        """The answer to an exchange whose claim was left out."""
        assert isinstance(exchanged, contract.Exchanged)
        return replace(exchanged, refused=self._refusal())

    def gives_way(self, request: contract.Request[Any], error: Exception) -> bool:
        """After a failure: whether the disk is full, the request may use the reserve, and there was one to give."""
        if type(request) not in _MAY_SPEND or (isinstance(request, contract.Exchange) and not request.outcomes):
            return False
        with contextlib.suppress(OSError):
            if isinstance(error, DiskFull) or self._free() < BYTES:
                with self._opened() as file:
                    os.ftruncate(file, 0)
                self._is_spent = True
                return True
        return False

    def _refusal(self) -> DiskFull:
        return DiskFull(
            f"The disk that holds {self._database} is full. What is left is kept for the outcomes of running jobs, so "
            f"no new work is taken on. Make {(ROOM_BYTES + BYTES) >> 20} MB free on it, then repeat."
        )

    def _fill(self) -> bool:
        """Make the file, if there is room; whether it is whole."""
        with contextlib.suppress(OSError):
            if self._free() < ROOM_BYTES + BYTES:
                return False
            with self._opened(os.O_CREAT) as file:
                if os.fstat(file).st_size < BYTES:
                    try:
                        _allocate(file)
                    except OSError:
                        os.ftruncate(file, 0)
                        raise
            return True
        return False

    @contextlib.contextmanager
    def _opened(self, flags: int = 0) -> Iterator[int]:
        """The file, and no other that was put or linked there: what is cut to nothing must be ours."""
        file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise OSError(f"{self.path} is no plain file of its own")
            yield file
        finally:
            os.close(file)

    def _free(self) -> int:
        found = os.statvfs(self._database.parent)
        return found.f_bavail * found.f_frsize


def _allocate(file: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, BYTES)
    else:  # macOS
        os.pwrite(file, os.urandom(BYTES), 0)

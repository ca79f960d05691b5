"""Many worker processes under one parent: `tenure worker --processes N`, and any worker that runs as process 1.

The parent opens no database and runs no handler. Children are started afresh (`posix_spawn`), never forked, so nothing
is shared with them. One that dies is started again, later and later if it keeps dying; one that ends by itself
(drained, told to, or misconfigured) is not. Signals are passed on, but for SIGHUP where it is ignored, as under nohup.
As process 1 the parent also reaps the orphans that
end up with it. If the parent is killed, its children stop by themselves (`die_with_supervisor`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tenure.model.log_event import ERROR, INFO, WARNING, Emit
from tenure.worker.log import NoLog, WorkerLog
from tenure.worker.process_tree import die_with_parent

PARENT_VARIABLE = "TENURE_SUPERVISOR"
"""Tells a child which process supervises it."""
BACKOFF_SECONDS = 0.1
BACKOFF_MAX_SECONDS = 30.0
HEALTHY_SECONDS = 10.0
"""A child that lived this long starts again without delay."""
KILL_SECONDS = 10.0
"""How long after its own grace period a child that was told to stop is killed."""
FINAL_CODES = frozenset({0, 2, 6})
"""Ended by itself, wrong settings, schema behind: starting it again would change nothing."""
_STOP = (signal.SIGINT, signal.SIGTERM)
_HEARD = frozenset({signal.SIGCHLD, *_STOP, signal.SIGHUP})


def die_with_supervisor() -> None:
    """For a child's start: be told to stop when the supervisor ends, however it ends."""
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if parent.isdecimal():
        die_with_parent(signal.SIGTERM, int(parent))


@dataclass(slots=True)
class _Place:
    """One of the N: the process that fills it, or when to start the next."""

    number: int
    pid: int | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    failures: int = 0
    code: int | None = None
    """Set when the place stays empty for good."""


@dataclass(slots=True)
class Supervisor:
    """Keeps `processes` copies of a command running until told to stop. `run` blocks and answers an exit code."""

    command: Sequence[str]
    processes: int
    grace_seconds: float = 20.0
    emit: Emit = field(default_factory=NoLog)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    _places: list[_Place] = field(default_factory=list)
    _stop_signals: int = 0
    _kill_at: float | None = None
    _heard: frozenset[signal.Signals] = _HEARD

    def run(self) -> int:
        """Start the children and see to them. 0 if all ended well, otherwise the first bad exit code."""
        log = WorkerLog(f"supervisor-{os.getpid()}", self.emit)
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # a blocked signal would be heard all the same
            self._heard = _HEARD - {signal.SIGHUP}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._heard)
        try:
            self._places = [_Place(number) for number in range(self.processes)]
            while any(place.code is None for place in self._places):
                self._start_due(log)
                self._hear(log)
                self._reap(log)
            return next((place.code for place in self._places if place.code), 0)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _start_due(self, log: WorkerLog) -> None:
        now = time.monotonic()
        for place in self._places:
            if place.code is None and place.pid is None:
                if self._stop_signals:
                    place.code = 0
                elif place.start_at <= now:
                    place.pid = self._spawn()
                    place.started_at = now
                    log.event("child_started", INFO, pid=place.pid, place=place.number)

    def _spawn(self) -> int:
        environment = {**self.environment, PARENT_VARIABLE: str(os.getpid())}
        return os.posix_spawnp(
            self.command[0],
            list(self.command),
            environment,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, *self._heard],
        )

    def _hear(self, log: WorkerLog) -> None:
        """Wait for a signal or for the next thing that is due."""
        heard = signal.sigtimedwait(self._heard, self._seconds_to_wait())
        number = signal.SIGCHLD if heard is None else heard.si_signo
        if number in {*_STOP, signal.SIGHUP}:
            self._stop_signals += 1
            self._kill_at = time.monotonic() + self.grace_seconds + KILL_SECONDS
            log.event("stopping", INFO, signal=signal.Signals(number).name)
            self._send(signal.SIGTERM)
        elif self._kill_at is not None and time.monotonic() >= self._kill_at:
            log.event("killing", WARNING, "children did not stop in time")
            self._kill_at = None
            self._send(signal.SIGKILL)

    def _seconds_to_wait(self) -> float:
        moments = [p.start_at for p in self._places if p.code is None and p.pid is None]
        if self._kill_at is not None:
            moments.append(self._kill_at)
        return max(0.0, min([*moments, time.monotonic() + 60.0]) - time.monotonic())

    def _send(self, number: signal.Signals) -> None:
        for place in self._places:
            if place.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(place.pid, number)

    def _reap(self, log: WorkerLog) -> None:
        """Take in every process that has ended: children, and as process 1 also orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            place = next((place for place in self._places if place.pid == pid), None)
            if place is not None:
                self._ended(place, os.waitstatus_to_exitcode(status), log)

    def _ended(self, place: _Place, code: int, log: WorkerLog) -> None:
        now = time.monotonic()
        pid, place.pid = place.pid, None
        if self._stop_signals or code in FINAL_CODES:
            was_told = self._stop_signals and code == -signal.SIGTERM  # before it could hear the signal by itself
            place.code = 0 if was_told else code if code >= 0 else 128 - code
            log.event("child_ended", INFO if code == 0 else ERROR, pid=pid, place=place.number, code=code)
            return
        place.failures = 0 if now - place.started_at >= HEALTHY_SECONDS else place.failures + 1
        delay = 0.0
        if place.failures:
            delay = min(BACKOFF_MAX_SECONDS, BACKOFF_SECONDS * 2 ** min(place.failures - 1, 16))
        place.start_at = now + delay
        log.event("child_died", ERROR, pid=pid, place=place.number, code=code, restart_seconds=delay)


def needs_init() -> bool:
    """Whether this process is process 1 and should therefore leave the work to a child."""
    return os.getpid() == 1

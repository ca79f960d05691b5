"""For tests of your own: a queue that lasts as long as a test, a clock in your hand, and crashes on demand.

    def test_a_welcome_is_sent() -> None:
        with tenure.testing.temporary_app(app, clock=clock) as app:   # `app` is yours, pointed elsewhere for a while
            welcome.options(delay=60).enqueue(Welcome(user_id=7))
            clock.advance(60)
            drain(app)
            ...

Real stores, never a fake: what passes here runs the same SQL as in production.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.app import App
from tenure.client.connect import open_store, scheme_of
from tenure.client.function import JobFunction
from tenure.errors import ConfigError, JobFailed
from tenure.handler.building import MISSING
from tenure.model import clock as model_clock
from tenure.model import failpoints
from tenure.model.job import Job
from tenure.model.log_event import WARNING, LogEvent
from tenure.store.contract import Store

if TYPE_CHECKING:
    from tenure.store.postgres.testing import DatabaseClock

__all__ = [
    "Crash",
    "CrashPoint",
    "ManualClock",
    "adrain",
    "assert_enqueued",
    "crash_at",
    "drain",
    "drop_restart_grace",
    "temporary_app",
    "temporary_store",
]


class ManualClock(model_clock.ManualClock):
    """The store's clock in a test's hand: it stands still until `advance` moves it. Serves both engines."""

    def __init__(self, at: datetime | None = None) -> None:
        super().__init__(at)
        self._followers: list[DatabaseClock] = []

    def advance(self, seconds: float | timedelta) -> None:
        """Move the time, also in databases that follow this clock. Backwards is allowed: clocks do jump."""
        super().advance(seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)
        for follower in self._followers:
            follower.set(self.now_us())

    @contextmanager
    def steer(self, url: str) -> Iterator[None]:
        """Let a PostgreSQL database of a test's own follow this clock. Changes its schema, which must be there."""
        from tenure.store.postgres.testing import DatabaseClock

        follower = DatabaseClock(url, self.now_us())
        self._followers.append(follower)
        try:
            yield
        finally:
            self._followers.remove(follower)
            follower.close()


@contextmanager
def temporary_store(url: str | None = None, *, clock: ManualClock | None = None) -> Iterator[Store]:
    """A fresh store, gone afterwards: a temporary SQLite file, or schema `tenure` in the PostgreSQL database at `url`.

    Raises: ConfigError, if the database at `url` has a schema `tenure` already: it might be in use.
    """
    with temporary_url(url, clock=clock) as fresh:
        is_sqlite = scheme_of(fresh) == "sqlite"
        store = open_store(fresh, "auto", clock if is_sqlite else None)
        try:
            yield store
        finally:
            store.close()


@contextmanager
def temporary_app(app: App | None = None, *, url: str | None = None, clock: ManualClock | None = None) -> Iterator[App]:
    """An App on a fresh store, gone afterwards. Your own `app`, if given, is pointed there for a while."""
    with temporary_url(url, clock=clock) as fresh:
        chosen = app or App()
        hand_in = clock if scheme_of(fresh) == "sqlite" else None
        with chosen.pointed_at(fresh, clock=hand_in):
            yield chosen


@contextmanager
def temporary_url(url: str | None = None, *, clock: ManualClock | None = None) -> Iterator[str]:
    """The URL of a fresh, migrated database that follows `clock`; for tests that start processes of their own.

    A SQLite store takes the time from the process that opens it, so other processes need the real time there.
    """
    with ExitStack() as stack:
        if url is None or scheme_of(url) == "sqlite":
            if url is not None:
                raise ConfigError("A temporary SQLite file needs no URL. Leave it out, or name a PostgreSQL database.")
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tenure-"))
            yield f"sqlite:///{Path(folder).resolve() / 'jobs.db'}"
            return
        from tenure.store.postgres import testing

        if testing.has_schema(url):
            raise ConfigError(
                "The database for a temporary store has a schema `tenure` already, and a test would destroy it. "
                "Name a database that only tests use, and drop the schema there if an earlier run left it."
            )
        stack.callback(testing.drop_schema, url)
        store = open_store(url, "always")
        store.close()
        if clock is not None:
            stack.enter_context(clock.steer(url))
        yield url


def drop_restart_grace(url: str) -> None:
    """Let leases on a PostgreSQL server run out although it has just started. The schema must be there already.

    In production a server spares leases for 30 s after its start, so that an outage burns no attempts.
    """
    from tenure.store.postgres import testing

    testing.drop_restart_grace(url)


def drain(app: App, *, queues: list[str] | None = None, concurrency: int = 1, raise_errors: bool = True) -> None:
    """Run every job that is due, here and now, until none is. Jobs that fail are due again only after their backoff.

    Raises: JobFailed for the first handler that raised, with its traceback, once all are run. What a handler says on
    purpose (Permanent, RetryAfter, Snooze) is no error. `raise_errors=False` leaves all of it to the test.
    """
    failures = _Failures()
    app.run_worker(queues=queues, concurrency=concurrency, emit=failures, **_DRAIN)
    failures.tell(raise_errors)


async def adrain(app: App, *, queues: list[str] | None = None, concurrency: int = 1, raise_errors: bool = True) -> None:
    """`drain` on the running event loop."""
    failures = _Failures()
    await app.aio.run_worker(queues=queues, concurrency=concurrency, emit=failures, **_DRAIN)
    failures.tell(raise_errors)


def assert_enqueued(
    app: App,
    kind: str | JobFunction[..., ..., Any, Any],
    payload: Any = MISSING,
    *,
    queue: str | None = None,
    key: str | None = None,
    times: int | None = None,
) -> list[Job]:
    """Assert that jobs of a kind were enqueued, whatever became of them since, and answer them, oldest first.

    Args:
        payload: What they carry, as `app.enqueue` takes it; any, if left out.
        times: How many there must be; at least one, if left out. 0 asserts that there is none.

    Raises: AssertionError, with what was enqueued instead. InvalidPayload, if `payload` does not fit the kind.
    """
    __tracebackhide__ = True
    name = kind if isinstance(kind, str) else kind.kind
    jobs = _every_job(app)
    found = [one for one in jobs if one.kind == name]
    if payload is not MISSING:
        wanted = json.loads(app.new_job(name, payload).payload)
        found = [one for one in found if one.payload == wanted]
    found = [one for one in found if queue in {None, one.queue} and key in {None, one.key}]
    if len(found) == times or (times is None and found):
        return found
    said = [f"{what}={value!r}" for what, value in (("queue", queue), ("key", key)) if value is not None]
    said += [] if payload is MISSING else [f"payload={wanted!r}"]
    matching = f" with {', '.join(said)}" if said else ""
    expected = "at least one job" if times is None else f"{times} jobs"
    raise AssertionError(f"Expected {expected} of kind {name!r}{matching}, found {len(found)}. {_enqueued(jobs)}")


def _every_job(app: App) -> list[Job]:
    page = app.jobs(limit=1_000)
    jobs = list(page)
    while page.next is not None:
        page = app.jobs(limit=1_000, after=page.next)
        jobs += page
    return jobs[::-1]


def _enqueued(jobs: list[Job]) -> str:
    if not jobs:
        return "Nothing was enqueued."
    shown = [f"  {one.kind} {one.payload!r} in {one.queue!r}, {one.shown_state}" for one in jobs[:_SHOWN]]
    more = [f"  and {len(jobs) - _SHOWN} more"] if len(jobs) > _SHOWN else []
    return "\n".join(["Enqueued were:", *shown, *more])


_SHOWN = 20
"""How many jobs an error lists."""
_DRAIN: dict[str, Any] = {"drain": True, "handle_signals": False, "maintain": False}
_ON_PURPOSE = frozenset({"permanent", "rate_limited", "snoozed", "cancelled", "shutdown"})


class _Failures:
    """Takes log events and keeps those of handlers that raised."""

    level = WARNING

    def __init__(self) -> None:
        self._found: list[LogEvent] = []

    def __call__(self, event: LogEvent) -> None:
        if event.name in {"retried", "failed", "dead"} and event.fields.get("class") not in _ON_PURPOSE:
            self._found.append(event)

    def tell(self, raise_errors: bool) -> None:
        if not raise_errors or not self._found:
            return
        first = self._found[0]
        state = "retry_waiting" if first.name == "retried" else first.name
        error = JobFailed(str(first.job), str(first.kind), state, first.message)
        if first.traceback:
            error.add_note(first.traceback)
        if len(self._found) > 1:
            error.add_note(f"{len(self._found) - 1} more attempts failed in this drain.")
        raise error


class Crash(BaseException):
    """What a crash point raises unless told otherwise. Not an Exception, so that no handler of errors swallows it."""


@dataclass(slots=True)
class CrashPoint:
    """What happened at an active failpoint."""

    name: str
    hits: int = 0
    """How often it was passed."""
    crashes: int = 0
    """How often it broke."""


@contextmanager
def crash_at(
    name: str, *, error: BaseException | Callable[[], BaseException] | None = None, kill: bool = False, skip: int = 0
) -> Iterator[CrashPoint]:
    """Make the named point break once, in this process: raise `Crash` or `error`, or with `kill` die by SIGKILL.

    `skip` lets it pass that often before. Points in use: `after_commit_before_reply` in both engines, and
    `before_batch_commit` in both when `tenure move` writes.
    """
    seen = CrashPoint(name)

    def act() -> None:
        seen.hits += 1
        if seen.hits != skip + 1:
            return
        seen.crashes += 1
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise error() if callable(error) else error or Crash(f"crashed at {name}")

    failpoints.arm(name, act)
    try:
        yield seen
    finally:
        failpoints.disarm(name)

"""For tests of your own: a queue that lasts as long as a test, a clock in your hand, and crashes on demand.

    def test_a_welcome_is_sent() -> None:
        with tenure.testing.temporary_app(app, clock=clock) as app:   # `app` is yours, pointed elsewhere for a while
            welcome.enqueue(Welcome(user_id=7), delay=60)
            clock.advance(60)
            drain(app)
            ...

Real stores, never a fake: what passes here runs the same SQL as in production.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tenure.app import App
from tenure.client.connect import open_store, scheme_of
from tenure.errors import ConfigError
from tenure.model import clock as model_clock
from tenure.model import failpoints
from tenure.store.contract import Store

if TYPE_CHECKING:
    from tenure.store.postgres.testing import DatabaseClock

__all__ = [
    "Crash",
    "CrashPoint",
    "ManualClock",
    "adrain",
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

    Raises: ConfigError, if the database at `url` has a schema `tenure` already: it might be somebody's.
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


def drain(app: App, *, queues: list[str] | None = None, concurrency: int = 1) -> None:
    """Run every job that is due, here and now, until none is. Jobs that fail are due again only after their backoff."""
    app.run_worker(queues=queues, concurrency=concurrency, drain=True, handle_signals=False, maintain=False)


async def adrain(app: App, *, queues: list[str] | None = None, concurrency: int = 1) -> None:
    """`drain` on the running event loop."""
    await app.aio.run_worker(queues=queues, concurrency=concurrency, drain=True, handle_signals=False, maintain=False)


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

    `skip` lets it pass that often before. Points in use: `after_commit_before_reply` in both engines. On SQLite, where
    an enqueue hands its job over to a worker that waits, `after_hand_over_before_commit` and
    `after_hand_over_before_word` too.
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

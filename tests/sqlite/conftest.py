"""A store in a file of its own, for what only SQLite can do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.model.clock import ManualClock
from tenure.model.policy import QueuePolicy
from tenure.store.admin import SetQueues
from tenure.store.sqlite import wake
from tenure.store.sqlite import writer as writing
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.lines import LOOK


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the database file stands."""
    return tmp_path / "jobs.db"


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still until it is moved."""
    return ManualClock()


@pytest.fixture
def store(path: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    """A migrated store on that clock."""
    made = SqliteStore(f"sqlite:///{path}", clock, busy_seconds=5.0)
    made.migrate()
    yield made
    made.close()


@pytest.fixture
def only_datagrams(monkeypatch: pytest.MonkeyPatch) -> None:
    """No poll wakes, and no disk is too slow for a loop."""
    monkeypatch.setattr(wake, "POLL_SECONDS", 600.0)
    monkeypatch.setattr(writing, "MOMENT_SECONDS", 3600.0)


@pytest.fixture
def looked(store: SqliteStore) -> None:
    """A worker has looked for jobs on this store already, in vain."""
    store.do(SetQueues({"elsewhere": QueuePolicy()}, "test"))
    store.do(LOOK)

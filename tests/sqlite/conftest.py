"""A store in a file of its own, for what only SQLite can do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.model.clock import ManualClock
from tenure.store.sqlite.store import SqliteStore


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

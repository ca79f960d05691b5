"""The engines as grounds for the machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tenure.model.clock import ManualClock
from tenure.store.contract import Store
from tests.conformance.engines import START, SteeredDatabase, open_postgres, open_sqlite


class SqliteGround:
    """A file per example."""

    store: Store

    def __init__(self, folder: Path, opened: Callable[[Path, ManualClock], Store] = open_sqlite) -> None:
        self._folder = folder
        self._opened = opened
        self._number = 0
        self._clock = ManualClock(START)

    @property
    def path(self) -> Path:
        """The file of the example that runs."""
        return self._folder / f"{self._number}.db"

    def renew(self) -> None:
        for leftover in self._folder.glob(f"{self._number}.db*"):
            if leftover.is_dir():  # a life with a checkpoint in it has left its lock
                shutil.rmtree(leftover)
            else:
                leftover.unlink()
        self._number += 1
        self._clock = ManualClock(START)
        self.store = self._opened(self.path, self._clock)

    def reopen(self) -> None:
        self.store.close()
        self.store = self._opened(self.path, self._clock)

    def advance(self, seconds: int) -> None:
        self._clock.advance(seconds)

    def close(self) -> None:
        self.store.close()


class PostgresGround:
    """One database, made as new for each example."""

    store: Store

    def __init__(self, database: SteeredDatabase) -> None:
        self._database = database

    def renew(self) -> None:
        self._database.restore()
        self.store = open_postgres(self._database.url)

    def reopen(self) -> None:
        self.store.close()
        self.store = open_postgres(self._database.url)

    def advance(self, seconds: int) -> None:
        self._database.advance(seconds)

    def close(self) -> None:
        self.store.close()

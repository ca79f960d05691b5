"""A worker's tests run on both engines, in real time unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.engines import open_sqlite, open_store, real_time_database, sqlite_url
from tests.servers import PostgresServer
from tests.worker.bed import AT_ONCE, Bed


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh, migrated database."""
    if request.param == "sqlite":
        open_sqlite(tmp_path / "jobs.db").close()
        yield sqlite_url(tmp_path / "jobs.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    database = real_time_database(server)
    yield database
    server.drop_database(database)


@pytest.fixture
def bed(url: str) -> Iterator[Bed]:
    """A store with nothing in it but the queue `default`, whose jobs are retried at once."""
    store = open_store(url)
    bed = Bed(store)
    bed.queue(AT_ONCE)
    yield bed
    store.close()

"""Memory is tried on both engines, with real workers and the real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure import App
from tests.conformance.engines import open_sqlite, real_time_database, sqlite_url
from tests.servers import PostgresServer


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
def app(url: str) -> Iterator[App]:
    """An app on it, with wordllama's vectors."""
    with App(url, embedder="wordllama:256") as app:
        yield app

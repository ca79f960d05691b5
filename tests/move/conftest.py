"""Databases of both engines, empty or filled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers import PostgresServer

Make = Callable[[str], str]


@pytest.fixture
def empty(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Make]:
    """Makes the URL of a database that has nothing in it: `sqlite` or `postgres`."""
    made: list[str] = []

    def make(engine: str) -> str:
        if engine == "sqlite":
            made.append("")
            return f"sqlite:///{tmp_path / f'{len(made)}.db'}"
        url = postgres_server.create_database()
        made.append(url)
        return url

    yield make
    for url in filter(None, made):
        postgres_server.drop_database(url)


@pytest.fixture(params=["sqlite", "postgres"])
def source(request: pytest.FixtureRequest, empty: Make) -> str:
    """A database of each engine."""
    return empty(request.param)


@pytest.fixture
def destination(source: str, empty: Make) -> str:
    """An empty database of the other engine."""
    return empty("postgres" if source.startswith("sqlite") else "sqlite")

"""An app on a fresh database of each engine, with the real time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tenure
from tenure.testing import temporary_app
from tests.servers import PostgresServer


def migrate(url: str) -> None:
    tenure.App(url).migrate()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def app(request: pytest.FixtureRequest) -> Iterator[tenure.App]:
    if request.param == "sqlite":
        with temporary_app() as app:
            yield app
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    server.template("migrated", migrate)
    url = server.create_database(template="migrated")
    with tenure.App(url) as app:
        yield app
    server.drop_database(url)

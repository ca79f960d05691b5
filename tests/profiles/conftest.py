"""Every test of a profile's rules runs on both engines, unless its module or the test itself says on which."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.engines import scratch_folder
from tests.profiles.ground import Ground, PostgresGround, sqlite_ground
from tests.servers import PostgresServer


@pytest.fixture(scope="session")
def postgres_ground(postgres_server: PostgresServer) -> Iterator[PostgresGround]:
    """The database that tests on PostgreSQL share."""
    made = PostgresGround(postgres_server)
    yield made
    made.close()


@pytest.fixture(scope="session")
def postgres15_ground(postgres15_server: PostgresServer) -> Iterator[PostgresGround]:
    """The same on PostgreSQL 15, where it is installed."""
    made = PostgresGround(postgres15_server)
    yield made
    made.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """A fresh database with all profiles."""
    if request.param == "sqlite":
        with scratch_folder() as folder, sqlite_ground(folder / "jobs.db") as made:
            yield made
        return
    shared: PostgresGround = request.getfixturevalue("postgres_ground")
    fresh = shared.fresh()
    try:
        yield fresh
    finally:
        fresh.app.close()


@pytest.fixture
def server_ground(postgres_ground: PostgresGround) -> Iterator[Ground]:
    """The same on PostgreSQL only, for what needs a server: functions, roles, logins."""
    fresh = postgres_ground.fresh()
    try:
        yield fresh
    finally:
        fresh.app.close()


@pytest.fixture
def file_ground() -> Iterator[Ground]:
    """The same on SQLite only."""
    with scratch_folder() as folder, sqlite_ground(folder / "jobs.db") as made:
        yield made

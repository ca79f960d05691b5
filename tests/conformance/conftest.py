"""One suite, every store: each test runs on both engines, and where its module says so through both doors.

A module sets `DOORS = ("do", "ado")` to be run through the async door as well; the sync door is the rule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from tenure.model.clock import ManualClock
from tenure.store.base import Store
from tests.conformance.acts import Subject
from tests.conformance.engines import START, SteeredClock, SteeredDatabase, open_postgres, open_sqlite, scratch_folder
from tests.servers import PostgresServer


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" not in metafunc.fixturenames:
        return
    doors = getattr(metafunc.module, "DOORS", ("do",))
    cases = [
        pytest.param((engine, door), id=f"{engine}-{door}", marks=marks)
        for engine, marks in (("sqlite", ()), ("postgres", (pytest.mark.postgres,)))
        for door in doors
    ]
    metafunc.parametrize("store", cases, indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """A fresh store, migrated, on a clock that stands still."""
    engine, door = request.param
    opened = _sqlite() if engine == "sqlite" else _postgres(request)
    with opened as (raw, clock):
        if door == "do":
            yield Subject(engine, raw, clock)
            return
        with start_blocking_portal("asyncio") as portal:
            yield Subject(engine, raw, clock, portal)
            portal.call(raw.aclose)


@pytest.fixture
def clock(store: Subject) -> SteeredClock:
    """The store's clock."""
    return store.clock


@contextlib.contextmanager
def _sqlite() -> Iterator[tuple[Store, SteeredClock]]:
    clock = ManualClock(START)
    with scratch_folder() as folder:
        store = open_sqlite(folder / "jobs.db", clock)
        try:
            yield store, clock
        finally:
            store.close()


@pytest.fixture(scope="session")
def steered_database(postgres_server: PostgresServer) -> Iterator[SteeredDatabase]:
    """One database for the session, made as new for each test."""
    database = SteeredDatabase(postgres_server)
    yield database
    database.close()


@contextlib.contextmanager
def _postgres(request: pytest.FixtureRequest) -> Iterator[tuple[Store, SteeredClock]]:
    database: SteeredDatabase = request.getfixturevalue("steered_database")
    database.restore()
    store = open_postgres(database.url)
    try:
        yield store, database
    finally:
        store.close()

"""One suite, every store: each test runs on SQLite, PostgreSQL 18 and, where it is installed, PostgreSQL 15; and where
its module says so through both doors.

A module sets `DOORS = ("do", "ado")` to be run through the async door as well; the sync door is the rule. PostgreSQL 15
is asked through the sync door only (the doors are ours, not the server's), unless `TENURE_LONG=1`.

The modules of POOLED also run through a real PgBouncer in transaction mode; with `TENURE_LONG=1` all do.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from tenure.model.clock import ManualClock
from tenure.store.contract import Store
from tenure.store.postgres.address import read_address
from tenure.store.postgres.store import PostgresStore
from tests.conformance.acts import Subject
from tests.conformance.engines import START, SteeredClock, SteeredDatabase, open_sqlite, scratch_folder
from tests.pooler import PgBouncer
from tests.servers import PostgresServer

LONG = os.environ.get("TENURE_LONG") == "1"
ENGINES = (
    ("sqlite", ()),
    ("postgres", (pytest.mark.postgres,)),
    ("postgres15", (pytest.mark.postgres,)),
    ("pgbouncer", (pytest.mark.postgres,)),
)
POOLED = frozenset(
    {"claim", "concurrent_callers", "enqueue", "fail_and_backoff", "flow_steps", "flow_waits", "gates", "heartbeat"}
    | {"idempotent_repeats", "keys", "limits", "metrics", "reap_expire", "settle", "streams", "your_transaction"}
)
"""What every job goes through, and what is most likely to lean on a session."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" not in metafunc.fixturenames:
        return
    doors = getattr(metafunc.module, "DOORS", ("do",))
    is_pooled = LONG or metafunc.module.__name__.rpartition("test_")[2] in POOLED
    cases = [
        pytest.param((engine, door), id=f"{engine}-{door}", marks=marks)
        for engine, marks in ENGINES
        for door in (doors if LONG or engine in {"sqlite", "postgres"} else ("do",))
        if is_pooled or engine != "pgbouncer"
    ]
    metafunc.parametrize("store", cases, indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """A fresh store, migrated, on a clock that stands still."""
    engine, door = request.param
    opened = _sqlite() if engine == "sqlite" else _postgres(request, engine)
    is_pooled = engine == "pgbouncer"
    engine = "sqlite" if engine == "sqlite" else "postgres"  # for a test there are two, whatever version and way
    with opened as (raw, clock):
        if door == "do":
            yield Subject(engine, raw, clock, is_pooled=is_pooled)
            return
        with start_blocking_portal("asyncio") as portal:
            yield Subject(engine, raw, clock, portal, is_pooled=is_pooled)
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
    yield from _steered(postgres_server)


@pytest.fixture(scope="session")
def steered_database15(postgres15_server: PostgresServer) -> Iterator[SteeredDatabase]:
    """The same on PostgreSQL 15."""
    yield from _steered(postgres15_server)


def _steered(server: PostgresServer) -> Iterator[SteeredDatabase]:
    database = SteeredDatabase(server)
    yield database
    database.close()


@contextlib.contextmanager
def _postgres(request: pytest.FixtureRequest, engine: str) -> Iterator[tuple[Store, SteeredClock]]:
    name = "steered_database15" if engine == "postgres15" else "steered_database"
    database: SteeredDatabase = request.getfixturevalue(name)
    database.restore()
    if engine != "pgbouncer":
        with database.opened() as store:
            yield store, database
        return
    pooler: PgBouncer = request.getfixturevalue("pgbouncer")
    address = read_address(pooler.url(database.url))
    pooled = PostgresStore(address.url, pool_size=address.pool_size, is_pooled=address.is_pooled)
    try:
        yield pooled, database
    finally:
        pooled.close()

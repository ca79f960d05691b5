"""What every test may ask for."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.pooler import MISSING, PgBouncer, find_pgbouncer
from tests.servers import PostgresServer, debian_bin_path, wheel_bin_path

# A slow machine is no bug, so examples have no deadline; a failure prints what replays it.
hypothesis.settings.register_profile("tenure", deadline=None, print_blob=True)
hypothesis.settings.load_profile("tenure")

# A shell that runs the tests in the background makes them ignore SIGINT, and every process they start with them.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collector of cycles away from the tests' own objects: half a million, made once and kept to the end.

    Looking through them again and again took almost half the time of a collection of tests, in every process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests (`pytest.mark.anyio`) run on asyncio, the loop that Tenure's workers use."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """PostgreSQL 18 from the wheel, started once for the session; in a parallel run each worker has its own.

    TENURE_POSTGRES_BIN names the folder of another version's binaries instead.
    """
    other = os.environ.get("TENURE_POSTGRES_BIN")
    server = PostgresServer(Path(other) if other else wheel_bin_path(18), durable=False)
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres15_server() -> Iterator[PostgresServer]:
    """PostgreSQL 15 from Debian's packages, where it is installed."""
    bin_path = debian_bin_path(15)
    if bin_path is None:
        pytest.skip("PostgreSQL 15 is not installed (Debian: apt-get install postgresql-15)")
    server = PostgresServer(bin_path, durable=False)
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """PgBouncer in transaction mode before that server, where it is installed."""
    program = find_pgbouncer()
    if program is None:
        pytest.skip(MISSING)
    made = PgBouncer(program, postgres_server)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh, empty database on PostgreSQL 18, dropped after the test."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)

"""Databases with the schema in them, for what only PostgreSQL can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.conformance.engines import migrated_database
from tests.servers import USER, PostgresServer

ROLES = ("producer", "worker", "reader", "operator", "admin")


@pytest.fixture(params=["18", "15"])
def server(request: pytest.FixtureRequest) -> PostgresServer:
    """Each version of PostgreSQL that is there."""
    found: PostgresServer = request.getfixturevalue("postgres_server" if request.param == "18" else "postgres15_server")
    return found


@pytest.fixture
def url(request: pytest.FixtureRequest, server: PostgresServer) -> Iterator[str]:
    """A migrated database; a new one for tests under `new_database`."""
    with migrated_database(server, is_new=getattr(request, "param", "") == "new") as made:
        yield made


new_database = pytest.mark.parametrize("url", [pytest.param("new", id="")], indirect=True)
"""For tests that count pages or rows that were walked: dead rows of earlier tests would count."""


@pytest.fixture
def admin(url: str) -> Iterator[psycopg.Connection]:
    """A superuser's connection to that database."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def login(url: str, admin: psycopg.Connection) -> Callable[..., str]:
    """Makes a login that has one of Tenure's roles and nothing else, and answers its URL. `nth` makes a second one."""

    def make(role: str, nth: str = "") -> str:
        name = f"login_{role}{nth}"
        if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone():
            admin.execute(f"CREATE ROLE {name} LOGIN".encode())
        admin.execute(f"GRANT tenure_{role} TO {name}".encode())
        return url.replace(f"{USER}@", f"{name}@")

    return make

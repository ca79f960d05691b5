"""For tests on a PostgreSQL database: set its clock, drop the grace after a restart, remove the schema."""

from __future__ import annotations

import psycopg

from tenure.store.postgres.address import read_address
from tenure.store.postgres.errors import translate
from tenure.store.postgres.sql import statement


def has_schema(url: str) -> bool:
    """Whether the database has a schema `tenure`."""
    with _connect(url) as connection:
        row = connection.execute(statement("has_schema")).fetchone()
    return row is not None and bool(row[0])


def drop_schema(url: str) -> None:
    """Remove the schema with all it holds."""
    with _connect(url) as connection:
        connection.execute(statement("drop_schema"))


def drop_restart_grace(url: str) -> None:
    """Let leases run out from the start of the server on. For servers that have just been started on purpose."""
    with _connect(url) as connection:
        connection.execute(statement("drop_restart_grace"))


class DatabaseClock:
    """Sets the clock of one database. Holds a connection until it is closed."""

    def __init__(self, url: str, now_us: int) -> None:
        self._connection = _connect(url)
        if self._connection.execute(statement("has_clock")).fetchone() == (True,):
            self.set(now_us)
            return
        # Several statements take no parameters, so the number is put in here; it is ours and an integer.
        self._connection.execute((statement("install_clock").decode() % {"now_us": int(now_us)}).encode())

    def set(self, now_us: int) -> None:
        """From now on the database believes that it is this moment, in microseconds since 1970."""
        self._connection.execute(statement("set_clock"), {"now_us": now_us})

    def close(self) -> None:
        """Let go of the connection. The clock stands still from here on."""
        self._connection.close()


def _connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    try:
        return psycopg.connect(read_address(url).url, autocommit=True)
    except psycopg.Error as exc:
        raise translate(exc) from exc

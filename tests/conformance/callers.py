"""Applications with a transaction of their own, each in the words of its library.

One interface for all: write a row of the application's, enqueue, savepoint, commit, rollback. What a library wants on
one thread runs on one thread; what is async runs on the loop.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import aiosqlite
import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tenure.model.job import Enqueued
from tenure.store.contract import Enqueue, Store

T = TypeVar("T")


class Caller(Protocol):
    """An application in a transaction."""

    async def open(self, url: str) -> None: ...

    async def write(self, number: int) -> None:
        """A row of the application's own."""

    async def enqueue(self, store: Store, request: Enqueue) -> list[Enqueued]: ...

    async def stumble(self) -> None:
        """A statement of the application's own that fails."""

    async def savepoint(self) -> None: ...

    async def back(self) -> None:
        """Roll back to the savepoint and leave it."""

    async def keep(self) -> None:
        """Leave the savepoint with what was done in it."""

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    async def close(self) -> None: ...


class OnThread:
    """A sync library: everything of it happens on one thread."""

    connection: Any

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)

    async def run(self, act: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, act)

    async def open(self, url: str) -> None:
        await self.run(lambda: self.connect(url))

    async def write(self, number: int) -> None:
        await self.run(lambda: self.execute(f"INSERT INTO business VALUES ({number})"))

    async def stumble(self) -> None:
        await self.run(lambda: self.execute("SELECT * FROM no_such_table"))

    async def enqueue(self, store: Store, request: Enqueue) -> list[Enqueued]:
        return await self.run(lambda: store.enqueue_on(self.connection, request))

    async def savepoint(self) -> None:
        await self.run(lambda: self.execute("SAVEPOINT theirs"))

    async def back(self) -> None:
        await self.run(lambda: self.execute("ROLLBACK TO SAVEPOINT theirs"))
        await self.keep()

    async def keep(self) -> None:
        await self.run(lambda: self.execute("RELEASE SAVEPOINT theirs"))

    async def commit(self) -> None:
        await self.run(self.connection.commit)

    async def rollback(self) -> None:
        await self.run(self.connection.rollback)

    async def close(self) -> None:
        await self.run(self.disconnect)
        self._thread.shutdown()

    def connect(self, url: str) -> None:
        raise NotImplementedError

    def disconnect(self) -> None:
        self.connection.close()

    def execute(self, sql: str) -> None:
        self.connection.execute(sql)


class PlainSqlite(OnThread):
    def connect(self, url: str) -> None:
        self.connection = sqlite3.connect(path_of(url))


class PlainPsycopg(OnThread):
    """With psycopg's own nested transactions."""

    def connect(self, url: str) -> None:
        self.connection = psycopg.connect(url)

    async def savepoint(self) -> None:
        self._nested = self.connection.transaction()
        await self.run(self._nested.__enter__)

    async def back(self) -> None:
        await self.run(lambda: self._nested.__exit__(psycopg.Rollback, psycopg.Rollback(), None))

    async def keep(self) -> None:
        await self.run(lambda: self._nested.__exit__(None, None, None))


class SqlalchemyConnection(OnThread):
    def connect(self, url: str) -> None:
        self._engine = sqlalchemy.create_engine(sqlalchemy_url(url))
        self.connection = self._engine.connect()

    def execute(self, sql: str) -> None:
        self.connection.execute(sqlalchemy.text(sql))

    def disconnect(self) -> None:
        self.connection.close()
        self._engine.dispose()

    async def savepoint(self) -> None:
        self._nested = await self.run(self.connection.begin_nested)

    async def back(self) -> None:
        await self.run(self._nested.rollback)

    async def keep(self) -> None:
        await self.run(self._nested.commit)


class SqlalchemySession(SqlalchemyConnection):
    def connect(self, url: str) -> None:
        self._engine = sqlalchemy.create_engine(sqlalchemy_url(url))
        self.connection = Session(self._engine)


class DjangoConnection(OnThread):
    """Inside `transaction.atomic`; a savepoint is an atomic inside it."""

    def connect(self, url: str) -> None:
        from django.db import connections

        self.alias = f"alias_{id(self)}"
        connections.settings[self.alias] = django_settings(url)
        self.connection = connections[self.alias]
        self._atomics: list[Any] = []
        self._enter()

    def disconnect(self) -> None:
        from django.db import connections

        while self._atomics:
            self._leave(undo=True)
        self.connection.close()
        del connections[self.alias]
        del connections.settings[self.alias]

    def execute(self, sql: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)

    async def savepoint(self) -> None:
        await self.run(self._enter)

    async def back(self) -> None:
        await self.run(lambda: self._leave(undo=True))

    async def keep(self) -> None:
        await self.run(lambda: self._leave(undo=False))

    async def commit(self) -> None:
        await self.run(lambda: self._leave(undo=False))

    async def rollback(self) -> None:
        await self.run(lambda: self._leave(undo=True))

    def _enter(self) -> None:
        from django.db import transaction

        self._atomics.append(transaction.atomic(using=self.alias))
        self._atomics[-1].__enter__()

    def _leave(self, *, undo: bool) -> None:
        if undo:
            self.connection.set_rollback(True)
        self._atomics.pop().__exit__(None, None, None)


class OnLoop:
    """An async library."""

    connection: Any

    async def write(self, number: int) -> None:
        await self.execute(f"INSERT INTO business VALUES ({number})")

    async def stumble(self) -> None:
        await self.execute("SELECT * FROM no_such_table")

    async def enqueue(self, store: Store, request: Enqueue) -> list[Enqueued]:
        return await store.aenqueue_on(self.connection, request)

    async def savepoint(self) -> None:
        await self.execute("SAVEPOINT theirs")

    async def back(self) -> None:
        await self.execute("ROLLBACK TO SAVEPOINT theirs")
        await self.keep()

    async def keep(self) -> None:
        await self.execute("RELEASE SAVEPOINT theirs")

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def close(self) -> None:
        await self.connection.close()

    async def execute(self, sql: str) -> None:
        await self.connection.execute(sql)


class AsyncSqlite(OnLoop):
    async def open(self, url: str) -> None:
        self.connection = await aiosqlite.connect(path_of(url))


class AsyncPsycopg(OnLoop):
    async def open(self, url: str) -> None:
        self.connection = await psycopg.AsyncConnection.connect(url)


class Asyncpg(OnLoop):
    """With asyncpg's own transactions, outer and nested."""

    async def open(self, url: str) -> None:
        self.connection = await asyncpg.connect(url)
        self._transactions = [self.connection.transaction()]
        await self._transactions[0].start()

    async def savepoint(self) -> None:
        self._transactions.append(self.connection.transaction())
        await self._transactions[-1].start()

    async def back(self) -> None:
        await self._transactions.pop().rollback()

    async def keep(self) -> None:
        await self._transactions.pop().commit()

    async def commit(self) -> None:
        await self.keep()

    async def rollback(self) -> None:
        await self.back()


class AsyncSqlalchemyConnection(OnLoop):
    engine: AsyncEngine
    connection: AsyncConnection | AsyncSession

    async def open(self, url: str) -> None:
        self.engine = create_async_engine(sqlalchemy_url(url, self.driver(url)))
        self.connection = await self.engine.connect()

    def driver(self, url: str) -> str:
        return "aiosqlite" if url.startswith("sqlite:") else "asyncpg"

    async def execute(self, sql: str) -> None:
        await self.connection.execute(sqlalchemy.text(sql))

    async def savepoint(self) -> None:
        self._nested = await self.connection.begin_nested()

    async def back(self) -> None:
        await self._nested.rollback()

    async def keep(self) -> None:
        await self._nested.commit()

    async def close(self) -> None:
        await self.connection.close()
        await self.engine.dispose()


class AsyncSqlalchemySession(AsyncSqlalchemyConnection):
    async def open(self, url: str) -> None:
        self.engine = create_async_engine(sqlalchemy_url(url, self.driver(url)))
        self.connection = AsyncSession(self.engine)


class AsyncPsycopgSession(AsyncSqlalchemySession):
    def driver(self, url: str) -> str:
        return "psycopg"


CALLERS: dict[str, tuple[type[Caller], ...]] = {
    "sqlite": (
        PlainSqlite,
        AsyncSqlite,
        SqlalchemyConnection,
        SqlalchemySession,
        AsyncSqlalchemyConnection,
        AsyncSqlalchemySession,
        DjangoConnection,
    ),
    "postgres": (
        PlainPsycopg,
        AsyncPsycopg,
        Asyncpg,
        SqlalchemyConnection,
        SqlalchemySession,
        AsyncSqlalchemyConnection,
        AsyncSqlalchemySession,
        AsyncPsycopgSession,
        DjangoConnection,
    ),
}


def path_of(url: str) -> str:
    """The file of a SQLite URL."""
    return url.removeprefix("sqlite:///")


def sqlalchemy_url(url: str, driver: str = "") -> str:
    """The same database in SQLAlchemy's words."""
    if url.startswith("sqlite:"):
        return url.replace("sqlite:", f"sqlite+{driver}:") if driver else url
    return url.replace("postgresql:", f"postgresql+{driver or 'psycopg'}:")


def django_settings(url: str) -> dict[str, Any]:
    """The same database in Django's words."""
    import django
    from django.conf import settings
    from django.db.utils import ConnectionHandler

    if not settings.configured:
        settings.configure(DATABASES={}, INSTALLED_APPS=[], USE_TZ=True)
        django.setup()
    if url.startswith("sqlite:"):
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": path_of(url)}
    else:
        known = psycopg.conninfo.conninfo_to_dict(url)
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": str(known["dbname"]),
            "USER": str(known["user"]),
            "HOST": str(known["host"]),
            "PORT": str(known["port"]),
        }
    full: dict[str, Any] = ConnectionHandler().configure_settings({"default": {}, "ours": database})["ours"]
    return full

"""Your transaction: run an enqueue on a connection that the caller owns.

The caller commits or rolls back; we only add to what is open. Every enqueue goes into a savepoint of its own, so that
a refusal of ours leaves the caller's transaction as usable as it was. Where the caller is in no transaction and its
driver would not open one (autocommit), the enqueue is a transaction by itself, as every other statement there is.

A connection is known by the library its type comes from, and that library is imported only then.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic_core import from_json

from tenure.errors import ConfigError

if TYPE_CHECKING:
    import aiosqlite
    import asyncpg
    import psycopg
    from django.db.backends.base.base import BaseDatabaseWrapper
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

T = TypeVar("T")

_LIBRARIES: Final = ("sqlite3", "aiosqlite", "psycopg", "asyncpg", "sqlalchemy", "django")
_FULL: Final = 2
"""SQLite's number for `synchronous = FULL`."""
_SAVEPOINT: Final = "SAVEPOINT tenure_enqueue"
_RELEASE: Final = "RELEASE SAVEPOINT tenure_enqueue"
_BACK: Final = "ROLLBACK TO SAVEPOINT tenure_enqueue"
# As text, whatever the connection has been told to make of json.
_CALL: Final = "SELECT tenure.enqueue(%s::text::json)::text"
_CALL_ASYNCPG: Final = "SELECT tenure.enqueue($1::text::json)::text"
_CALL_SQLALCHEMY: Final = "SELECT CAST(tenure.enqueue(CAST(CAST(:request AS text) AS json)) AS text)"


def call_enqueue(connection: Any, request: str) -> Any:
    """Run `tenure.enqueue` in the caller's PostgreSQL transaction and answer what it answers, parsed.

    `connection` is a psycopg, SQLAlchemy or Django connection, or a SQLAlchemy session. Raises ConfigError for others.
    """
    from tenure.store.postgres.errors import driver_errors

    with driver_errors():
        match _library(connection):
            case "psycopg" if not _is_async(connection):
                answer = _on_psycopg(connection, request)
            case "sqlalchemy" if not _is_async(connection):
                answer = _on_sqlalchemy(_expect(_sqlalchemy(connection), "postgresql"), request)
            case "django":
                answer = _on_django(_expect(connection, "postgresql"), request)
            case library:
                raise _refusal(connection, library, "PostgreSQL")
    return None if answer is None else from_json(answer)


async def acall_enqueue(connection: Any, request: str) -> Any:
    """The same on an async psycopg or asyncpg connection, or SQLAlchemy's AsyncConnection or AsyncSession."""
    from tenure.store.postgres.errors import driver_errors

    with driver_errors():
        match _library(connection):
            case "psycopg" if _is_async(connection):
                answer = await _on_async_psycopg(connection, request)
            case "asyncpg" if hasattr(connection, "fetchval") and hasattr(connection, "is_in_transaction"):
                answer = await _on_asyncpg(connection, request)
            case "sqlalchemy" if _is_async(connection):
                answer = await _on_async_sqlalchemy(_expect(await _async_sqlalchemy(connection), "postgresql"), request)
            case library:
                raise _refusal(connection, library, "PostgreSQL", wants_async=True)
    return None if answer is None else from_json(answer)


def use_sqlite(connection: Any, act: Callable[[sqlite3.Connection], T]) -> T:
    """Let `act` write in the caller's SQLite transaction, all of it or nothing.

    `connection` is a sqlite3, SQLAlchemy or Django connection, or a SQLAlchemy session. Raises ConfigError for others.
    """
    match _library(connection):
        case "sqlite3":
            return _in_savepoint(connection, act)
        case "sqlalchemy" if not _is_async(connection):
            bound = _expect(_sqlalchemy(connection), "sqlite")
            if not bound.in_transaction():
                bound.begin()  # so that its commit and rollback reach what is written here
            return _in_savepoint(_raw(bound.connection.driver_connection), act)
        case "django":
            wrapper: BaseDatabaseWrapper = _expect(connection, "sqlite")
            wrapper.ensure_connection()
            return _in_savepoint(_raw(wrapper.connection), act)
        case library:
            raise _refusal(connection, library, "SQLite")


async def ause_sqlite(connection: Any, act: Callable[[sqlite3.Connection], T]) -> T:
    """The same on an aiosqlite connection, or SQLAlchemy's AsyncConnection or AsyncSession: in its thread."""
    match _library(connection):
        case "aiosqlite":
            return await _in_thread(connection, act)
        case "sqlalchemy" if _is_async(connection):
            bound: AsyncConnection = _expect(await _async_sqlalchemy(connection), "sqlite")
            if not bound.in_transaction():
                await bound.begin()
            driver: Any = (await bound.get_raw_connection()).driver_connection
            if _library(driver) != "aiosqlite":
                raise _refusal(driver, _library(driver), "SQLite", wants_async=True)
            return await _in_thread(driver, act)
        case library:
            raise _refusal(connection, library, "SQLite", wants_async=True)


def _library(connection: object) -> str | None:
    """The library a connection comes from; a subclass made elsewhere counts as its base."""
    rooms = [cls.__module__.partition(".")[0] for cls in type(connection).__mro__]
    return next((room for room in rooms if room in _LIBRARIES), None)


def _is_async(connection: object) -> bool:
    return any(cls.__name__.lower().startswith("async") for cls in type(connection).__mro__)


def _refusal(connection: object, library: str | None, engine: str, *, wants_async: bool = False) -> ConfigError:
    name = f"{type(connection).__module__}.{type(connection).__qualname__}"
    is_async = _is_async(connection) or library in {"asyncpg", "aiosqlite"}
    if library is None:
        hint = "Hand in a connection or session of sqlite3, aiosqlite, psycopg, asyncpg, SQLAlchemy or Django."
    elif (library in {"sqlite3", "aiosqlite"}) != (engine == "SQLite") and library not in {"sqlalchemy", "django"}:
        hint = (
            f"It belongs to another engine than this store, which is on {engine}. Hand in a connection to its database."
        )
    elif wants_async and not is_async:
        hint = "It is not async. Use `enqueue` instead of `aenqueue` with it."
    elif is_async and not wants_async:
        hint = "It is async. Use `aenqueue` instead of `enqueue` with it."
    else:
        hint = "Hand in the connection or session itself, not what makes one."
    return ConfigError(f"A {name} cannot carry an enqueue of this store. {hint}")


def _expect(connection: Any, engine: str) -> Any:
    """A SQLAlchemy or Django connection, if it is one to this engine."""
    found = connection.dialect.name if hasattr(connection, "dialect") else connection.vendor
    if found != engine:
        raise ConfigError(
            f"The connection that was handed in belongs to {found}, and this store is on {engine}. "
            "Hand in a connection to the store's own database."
        )
    return connection


# --- PostgreSQL ----------------------------------------------------------------------------------------------------


def _on_psycopg(connection: psycopg.Connection[Any], request: str) -> str | None:
    from psycopg import Cursor, Error
    from psycopg.rows import tuple_row

    # Cursors of the plain kind, whatever factory the caller has set.
    cursor = Cursor(connection, row_factory=tuple_row)
    if _stands_alone(connection):
        return _first(cursor.execute(_CALL, [request]).fetchone())
    cursor.execute(_SAVEPOINT)
    try:
        answer = _first(cursor.execute(_CALL, [request]).fetchone())
    except BaseException:
        with suppress(Error):  # if the connection is gone, that is what the caller must learn
            cursor.execute(_BACK)
            cursor.execute(_RELEASE)
        raise
    cursor.execute(_RELEASE)
    return answer


async def _on_async_psycopg(connection: psycopg.AsyncConnection[Any], request: str) -> str | None:
    from psycopg import AsyncCursor, Error
    from psycopg.rows import tuple_row

    cursor = AsyncCursor(connection, row_factory=tuple_row)
    if _stands_alone(connection):
        return _first(await (await cursor.execute(_CALL, [request])).fetchone())
    await cursor.execute(_SAVEPOINT)
    try:
        answer = _first(await (await cursor.execute(_CALL, [request])).fetchone())
    except BaseException:
        with suppress(Error):
            await cursor.execute(_BACK)
            await cursor.execute(_RELEASE)
        raise
    await cursor.execute(_RELEASE)
    return answer


def _stands_alone(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    from psycopg.pq import TransactionStatus

    return connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE


def _first(row: tuple[Any, ...] | None) -> str | None:
    return None if row is None else row[0]


async def _on_asyncpg(connection: asyncpg.Connection[Any], request: str) -> str | None:
    from asyncpg import InterfaceError, PostgresError

    # Savepoints by hand: asyncpg's own refuse a transaction that was begun by a plain BEGIN.
    if not connection.is_in_transaction():
        return await connection.fetchval(_CALL_ASYNCPG, request)  # type: ignore[no-any-return]
    await connection.execute(_SAVEPOINT)
    try:
        answer: str | None = await connection.fetchval(_CALL_ASYNCPG, request)
    except BaseException:
        with suppress(PostgresError, InterfaceError):
            await connection.execute(_BACK)
            await connection.execute(_RELEASE)
        raise
    await connection.execute(_RELEASE)
    return answer


def _sqlalchemy(connection: Any) -> Connection:
    """The Connection of a SQLAlchemy session, in its transaction; or the Connection itself."""
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(connection, Session | scoped_session):
        return connection.connection()
    if isinstance(connection, Connection):
        return connection
    raise _refusal(connection, "sqlalchemy", "PostgreSQL")


async def _async_sqlalchemy(connection: Any) -> AsyncConnection:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    if isinstance(connection, AsyncSession | async_scoped_session):
        return await connection.connection()
    if isinstance(connection, AsyncConnection):
        return connection
    raise _refusal(connection, "sqlalchemy", "PostgreSQL", wants_async=True)


def _on_sqlalchemy(connection: Connection, request: str) -> str | None:
    from sqlalchemy import text

    if _is_autocommit(connection):
        return connection.execute(text(_CALL_SQLALCHEMY), {"request": request}).scalar()
    with connection.begin_nested():
        return connection.execute(text(_CALL_SQLALCHEMY), {"request": request}).scalar()


async def _on_async_sqlalchemy(connection: AsyncConnection, request: str) -> str | None:
    return await connection.run_sync(_on_sqlalchemy, request)


def _is_autocommit(connection: Connection) -> bool:
    """Whether SQLAlchemy was asked for AUTOCOMMIT, where a savepoint has nothing to stand on."""
    return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))


def _on_django(connection: BaseDatabaseWrapper, request: str) -> str | None:
    savepoint = connection.savepoint()  # None in autocommit mode: then there is no transaction to keep whole
    try:
        with connection.cursor() as cursor:
            cursor.execute(_CALL, [request])
            answer = _first(cursor.fetchone())
    except BaseException:
        if savepoint is not None:
            with suppress(Exception):
                connection.savepoint_rollback(savepoint)
                connection.savepoint_commit(savepoint)
        raise
    if savepoint is not None:
        connection.savepoint_commit(savepoint)
    return answer


# --- SQLite --------------------------------------------------------------------------------------------------------


def _in_savepoint(connection: sqlite3.Connection, act: Callable[[sqlite3.Connection], T]) -> T:
    """Run `act` in the transaction that is open, or in the one that the connection's mode would open for a write."""
    _make_durable(connection)
    alone = not connection.in_transaction and _commits_by_itself(connection)
    if not connection.in_transaction:
        connection.execute("BEGIN IMMEDIATE")
    if not alone:
        connection.execute(_SAVEPOINT)
    try:
        answer = act(connection)
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK" if alone else _BACK)
            if not alone:
                connection.execute(_RELEASE)
        raise
    connection.execute("COMMIT" if alone else _RELEASE)
    return answer


def _make_durable(connection: sqlite3.Connection) -> None:
    """An enqueue that was answered must survive a power cut, so the caller's commit must sync; and only Tenure's own
    checkpointer may move pages out of the WAL. SQLite does not change `synchronous` inside a transaction."""
    cursor = connection.cursor(sqlite3.Cursor)
    cursor.row_factory = None
    cursor.execute("PRAGMA wal_autocheckpoint = 0")
    if cursor.execute("PRAGMA synchronous").fetchone()[0] >= _FULL:
        return
    if connection.in_transaction:
        raise ConfigError(
            "The connection that was handed in has `synchronous` OFF or NORMAL: its commit could be lost in a power "
            "cut, and the job with it. Run `PRAGMA synchronous = FULL` on it before the transaction begins. Nothing "
            "was enqueued."
        )
    cursor.execute("PRAGMA synchronous = FULL")


def _commits_by_itself(connection: sqlite3.Connection) -> bool:
    """Whether each statement commits. `autocommit`, new in Python 3.12, may leave it to the older setting."""
    mode = getattr(connection, "autocommit", -1)
    return connection.isolation_level is None if mode == -1 else bool(mode)


def _raw(connection: object) -> sqlite3.Connection:
    if not isinstance(connection, sqlite3.Connection):
        raise _refusal(connection, _library(connection), "SQLite")
    return connection


async def _in_thread(connection: aiosqlite.Connection, act: Callable[[sqlite3.Connection], T]) -> T:
    # aiosqlite has no public way to run a function beside its connection; this is the one that all its own methods use.
    return await connection._execute(_in_savepoint, connection._conn, act)  # type: ignore[no-untyped-call,no-any-return]  # noqa: SLF001

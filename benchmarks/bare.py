"""The bare engines: the statements a job queue cannot do without, in tight loops. The ceiling for everybody else.

The table is as wide as Tenure's `job` and has only the indexes that live rows need. Every commit is synced. Ids
(UUIDv7) and payloads are made inside the measured loop, as any client must. There is no worker: no lease is renewed, no
error handled, nobody is told. Variants on PostgreSQL: `kept` leaves finished rows in place, `moved` moves them to a
history table; by asyncpg (the fastest driver) or psycopg (which Tenure uses); COPY by 1,000 or by 10,000.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import socket
import sqlite3
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.peers import looped
from benchmarks.peers.harness import Enqueue, Order, Side, main, sqlite_path, timed
from benchmarks.peers.tally import PRIORITIES, Tally
from benchmarks.protocol import payload

BATCH = 500
COLUMNS = ("id", "queue", "kind", "rank", "payload")
RESULT = '{"ok": true}'


class BarePostgres(Side):
    """PostgreSQL by asyncpg on uvloop."""

    name = "bare-asyncpg"
    distribution = "asyncpg"
    engines = ("postgres",)
    workloads: ClassVar[tuple[str, ...]] = ("W1", "W2", "W3a", "W3b", "W4", "W5", "W6")
    keeps_rows = True
    ending = "kept"
    copy_rows = 1_000
    _asking: Any = None

    @property
    def settings(self) -> str:  # type: ignore[override]
        """Say which variant this is."""
        loop = f"claim and complete {BATCH} in two statements, rows {self.ending}"
        return f"asyncpg, uvloop, {loop}, COPY by {self.copy_rows:,}"

    def prepare(self, url: str) -> None:
        """Make the tables."""
        _run(_execute(url, statement("postgres_schema")))

    def enqueue_each(self, url: str, jobs: int) -> float:
        """One prepared insert, one commit."""
        return float(_run(_each(url, jobs)))

    def enqueue_bulk(self, url: str, jobs: int, *, spread: bool = False) -> float:
        """COPY."""
        return float(_run(_copy(url, jobs, self.copy_rows, spread)))

    @contextmanager
    def enqueuer(self, url: str) -> Iterator[Enqueue]:
        """One insert that notifies."""
        with looped.sender(_notifying_door, url) as enqueue:
            yield enqueue

    def worker(self, order: Order, tally: Tally) -> None:
        """Claim and complete in a loop; in W4 wait for a notification between claims."""
        _run(_loop(order, tally, self.ending))

    def unfinished(self, url: str) -> int:
        """Count waiting and running rows."""
        return self._count(url, "postgres_unfinished")

    def finished(self, url: str) -> int:
        """Count rows done, in place or moved."""
        return self._count(url, "postgres_finished")

    def fill_history(self, url: str, jobs: int) -> None:
        """Write finished rows."""
        _run(_execute(url, statement(f"postgres_history_{self.ending}"), jobs))

    def worker_command(self, order: Order) -> list[str]:
        """Name the variant as well."""
        command = super().worker_command(order)
        return [*command[:3], next(name for name, side in SIDES.items() if type(side) is type(self)), *command[3:]]

    def _count(self, url: str, name: str) -> int:
        import psycopg

        if self._asking is None:
            self._asking = psycopg.connect(url, autocommit=True)
        return int(self._asking.execute(statement(name)).fetchone()[0])


class BareMoved(BarePostgres):
    """The same with finished rows moved to a history table."""

    name = "bare-asyncpg-moved"
    workloads = ("W3a", "W3b", "W5", "W6")
    ending = "moved"


class BareCopy10k(BarePostgres):
    """The same with COPY by 10,000."""

    name = "bare-asyncpg-copy-10k"
    workloads = ("W2",)
    copy_rows = 10_000


class BarePsycopg(BarePostgres):
    """PostgreSQL by psycopg, for the two enqueues."""

    name = "bare-psycopg"
    distribution = "psycopg"
    workloads = ("W1", "W2")
    settings = "psycopg (C), one connection, COPY 1,000"

    def enqueue_each(self, url: str, jobs: int) -> float:
        """One prepared insert, one commit."""
        import psycopg

        insert = statement("postgres_insert_psycopg")
        with psycopg.connect(url, autocommit=True) as connection:
            return timed(lambda: [connection.execute(insert, _row(i), prepare=True) for i in range(jobs)])

    def enqueue_bulk(self, url: str, jobs: int, *, spread: bool = False) -> float:
        """COPY as text."""
        import psycopg

        def bulk() -> None:
            for begin in range(0, jobs, self.copy_rows):
                with connection.cursor().copy(f"COPY bare.job ({', '.join(COLUMNS)}) FROM STDIN") as copy:
                    for i in range(begin, min(jobs, begin + self.copy_rows)):
                        copy.write_row(_row(i, i % PRIORITIES if spread else 0))

        with psycopg.connect(url, autocommit=True) as connection:
            return timed(bulk)


class BareSqlite(Side):
    """SQLite by the standard library, WAL, synchronous=FULL, rows kept in place."""

    name = "bare-sqlite"
    engines = ("sqlite",)
    settings = f"sqlite3, WAL, synchronous=FULL, claim and complete {BATCH} in two transactions, executemany 1,000"
    workloads = ("W1", "W2", "W3a", "W3b", "W4", "W5", "W6")
    keeps_rows = True

    @property
    def version(self) -> str:
        """The library's version."""
        return sqlite3.sqlite_version

    def prepare(self, url: str) -> None:
        """Make the table."""
        connection = _sqlite(url)
        connection.executescript(statement("sqlite_schema"))
        connection.close()

    def enqueue_each(self, url: str, jobs: int) -> float:
        """One insert, one commit."""
        connection, insert = _sqlite(url), statement("sqlite_insert")
        return timed(lambda: [connection.execute(insert, sqlite_row(i)) for i in range(jobs)])

    def enqueue_bulk(self, url: str, jobs: int, *, spread: bool = False) -> float:
        """executemany by 1,000."""
        connection, insert = _sqlite(url), statement("sqlite_insert")

        def bulk() -> None:
            for begin in range(0, jobs, 1_000):
                numbers = range(begin, min(jobs, begin + 1_000))
                with _transaction(connection):
                    connection.executemany(insert, (sqlite_row(i, i % PRIORITIES if spread else 0) for i in numbers))

        return timed(bulk)

    @contextmanager
    def enqueuer(self, url: str) -> Iterator[Enqueue]:
        """One insert, then a datagram to the worker's socket."""
        connection, insert = _sqlite(url), statement("sqlite_insert")
        wake = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

        def enqueue(i: int) -> tuple[int, int]:
            called = time.monotonic_ns()
            connection.execute(insert, sqlite_row(i))
            with suppress(OSError):
                wake.sendto(b"!", _socket_path(url))
            return called, time.monotonic_ns()

        yield enqueue

    def worker(self, order: Order, tally: Tally) -> None:
        """Claim and complete in a loop; in W4 wait for a datagram between claims."""
        connection = _sqlite(order.url)
        claim, complete = statement("sqlite_claim"), statement("sqlite_complete")
        wait = _datagram_wait(order.url) if order.do == "W4" else lambda: time.sleep(0.0005)
        tally.ready_and_wait()
        while True:
            with _transaction(connection):
                now = time.time_ns() // 1_000
                rows = connection.execute(claim, ("bench", BATCH, f"bench-{order.slot}", now)).fetchall()
            if not rows:
                wait()
                continue
            for _, _, data in rows:
                tally.started(json.loads(data)["i"])
            with _transaction(connection):
                now = time.time_ns() // 1_000
                connection.executemany(complete, ((job, token, RESULT, now) for job, token, _ in rows))

    def unfinished(self, url: str) -> int:
        """Count waiting and running rows."""
        return _sqlite_count(url, "sqlite_unfinished")

    def finished(self, url: str) -> int:
        """Count rows done."""
        return _sqlite_count(url, "sqlite_finished")

    def fill_history(self, url: str, jobs: int) -> None:
        """Write finished rows."""
        _sqlite(url).execute(statement("sqlite_history"), (jobs, time.time_ns() // 1_000))

    def worker_command(self, order: Order) -> list[str]:
        """Name the variant as well."""
        command = super().worker_command(order)
        return [*command[:3], "sqlite", *command[3:]]


SIDES: dict[str, Side] = {
    "asyncpg": BarePostgres(),
    "asyncpg-moved": BareMoved(),
    "asyncpg-copy-10k": BareCopy10k(),
    "psycopg": BarePsycopg(),
    "sqlite": BareSqlite(),
}


@functools.cache
def statement(name: str) -> str:
    """Read one of the bare statements."""
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def uuid7() -> uuid.UUID:
    """Make a time-ordered id."""
    random = int.from_bytes(os.urandom(10), "big")
    return uuid.UUID(
        int=(time.time_ns() // 1_000_000 << 80) | (random & ~(0xF << 76) & ~(0x3 << 62)) | 7 << 76 | 2 << 62
    )


def _row(i: int, rank: int = 0) -> tuple[uuid.UUID, str, str, int, str]:
    return uuid7(), "bench", "noop", rank, json.dumps(payload(i))


def sqlite_row(i: int, rank: int = 0) -> tuple[str, str, str, int, int, str]:
    """Make what `sqlite_insert` takes."""
    return str(uuid7()), "bench", "noop", rank, time.time_ns() // 1_000, json.dumps(payload(i))


def _run(coroutine: Any) -> Any:
    import uvloop

    return uvloop.run(coroutine)


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Any]:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def _execute(url: str, sql: str, *values: object) -> None:
    async with _connected(url) as connection:
        await connection.execute(sql, *values)


async def _each(url: str, jobs: int) -> float:
    async with _connected(url) as connection:
        insert = await connection.prepare(statement("postgres_insert"))
        begun = time.monotonic_ns()
        for i in range(jobs):
            await insert.fetch(*_row(i))
        return (time.monotonic_ns() - begun) / 1e9


async def _copy(url: str, jobs: int, batch: int, spread: bool) -> float:
    async with _connected(url) as connection:
        begun = time.monotonic_ns()
        for begin in range(0, jobs, batch):
            rows = [_row(i, i % PRIORITIES if spread else 0) for i in range(begin, min(jobs, begin + batch))]
            await connection.copy_records_to_table("job", schema_name="bare", columns=COLUMNS, records=rows)
        return (time.monotonic_ns() - begun) / 1e9


@asynccontextmanager
async def _notifying_door(url: str) -> AsyncIterator[Callable[[int], Awaitable[object]]]:
    async with _connected(url) as connection:
        insert = await connection.prepare(statement("postgres_insert_notify"))
        yield lambda i: insert.fetch(*_row(i))


async def _loop(order: Order, tally: Tally, ending: str) -> None:
    woken = asyncio.Event()
    async with _connected(order.url) as connection, _connected(order.url) as listening:
        await listening.add_listener("bare", lambda *_: woken.set())
        await connection.execute(statement("postgres_session"))
        claim = await connection.prepare(statement("postgres_claim"))
        complete = await connection.prepare(statement(f"postgres_complete_{ending}"))
        owner = f"bench-{order.slot}"
        tally.ready_and_wait()
        while True:
            woken.clear()
            rows = await claim.fetch("bench", BATCH, owner)
            if not rows:
                await woken.wait() if order.do == "W4" else await asyncio.sleep(0.0005)
                continue
            for _, _, data in rows:
                tally.started(json.loads(data)["i"])
            await complete.fetch([row[0] for row in rows], [row[1] for row in rows], [RESULT] * len(rows), owner)


def _sqlite(url: str) -> sqlite3.Connection:
    connection = sqlite3.connect(sqlite_path(url), isolation_level=None, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("COMMIT")


def _sqlite_count(url: str, name: str) -> int:
    connection = _sqlite(url)
    count = int(connection.execute(statement(name)).fetchone()[0])
    connection.close()
    return count


def _socket_path(url: str) -> str:
    return f"{sqlite_path(url)}.wake"


def _datagram_wait(url: str) -> Callable[[], object]:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(_socket_path(url))
    return lambda: listening.recv(16)


if __name__ == "__main__":
    chosen = sys.argv.pop(1)
    main(SIDES[chosen])

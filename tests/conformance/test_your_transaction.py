"""Your transaction: `enqueue(…, connection=c)` in the words of every library, on both engines.

The job exists exactly if the caller commits; a duplicate or a refusal leaves the caller's transaction as it was; the
wake-up comes when the commit has.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from tenure.errors import ConfigError, GateClosed, KeyConflict, UnknownQueue, UsageError
from tenure.model.ids import JobId
from tenure.model.job import Enqueued
from tenure.model.policy import QueuePolicy
from tenure.store.admin import SetGate, SetQueues
from tenure.store.contract import Enqueue, Store
from tenure.store.queries import GetJobs
from tests.conformance.acts import new_job
from tests.conformance.callers import (
    CALLERS,
    Caller,
    DjangoConnection,
    PlainPsycopg,
    path_of,
    sqlalchemy_url,
)
from tests.conformance.engines import migrated_database, open_postgres, open_sqlite, sqlite_url
from tests.servers import PostgresServer

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Place:
    """A store, and the database it shares with an application."""

    engine: str
    url: str
    store: Store

    def jobs(self, *ids: JobId) -> list[bool]:
        """Which of the jobs the rest of the world can see."""
        return [job is not None for job in self.store.do(GetJobs(ids))]

    def business(self) -> list[int]:
        """The application's rows that the rest of the world can see."""
        if self.engine == "sqlite":
            with sqlite3.connect(path_of(self.url)) as plain:
                rows = plain.execute("SELECT n FROM business ORDER BY n").fetchall()
            plain.close()
        else:
            with psycopg.connect(self.url) as connection:
                rows = connection.execute("SELECT n FROM business ORDER BY n").fetchall()
        return [row[0] for row in rows]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    engine: str = request.param
    if engine == "sqlite":
        url = sqlite_url(tmp_path / "app.db")
        store = open_sqlite(tmp_path / "app.db")
        plain = sqlite3.connect(path_of(url))
        plain.execute("CREATE TABLE business (n integer)")
        plain.close()
        yield Place(engine, url, store)
        store.close()
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with migrated_database(server, "CREATE TABLE business (n integer)", has_grace=False) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DELETE FROM business")
        store = open_postgres(url)
        yield Place(engine, url, store)
        store.close()


@pytest.fixture
async def caller(request: pytest.FixtureRequest, place: Place) -> AsyncIterator[Caller]:
    made: Caller = request.param()
    await made.open(place.url)
    yield made
    await made.close()


def engine_param(engine: str, *values: Any, name: str) -> Any:
    marks = [pytest.mark.postgres] if engine == "postgres" else []
    return pytest.param(engine, *values, id=f"{engine}-{name}", marks=marks)


every_caller = pytest.mark.parametrize(
    ("place", "caller"),
    [engine_param(engine, kind, name=kind.__name__) for engine, kinds in CALLERS.items() for kind in kinds],
    indirect=True,
)
on_postgres = pytest.mark.parametrize("place", [engine_param("postgres", name="any")], indirect=True)
on_sqlite = pytest.mark.parametrize("place", [engine_param("sqlite", name="any")], indirect=True)


@every_caller
async def test_a_job_exists_once_the_caller_has_committed(place: Place, caller: Caller) -> None:
    job = new_job(payload={"n": 1})
    await caller.write(1)

    answer = await caller.enqueue(place.store, Enqueue([job]))

    assert answer == [Enqueued(job.id)]
    assert (place.jobs(job.id), place.business()) == ([False], [])
    await caller.commit()
    assert (place.jobs(job.id), place.business()) == ([True], [1])


@every_caller
async def test_a_job_is_gone_when_the_caller_rolls_back(place: Place, caller: Caller) -> None:
    job = new_job()
    await caller.write(1)
    await caller.enqueue(place.store, Enqueue([job]))

    await caller.rollback()

    assert (place.jobs(job.id), place.business()) == ([False], [])


@every_caller
async def test_an_enqueue_that_comes_first_opens_the_callers_transaction(place: Place, caller: Caller) -> None:
    """Before any statement of the caller's own: still it is the caller who commits, or does not."""
    job = new_job()
    await caller.enqueue(place.store, Enqueue([job]))

    await caller.rollback()

    assert place.jobs(job.id) == [False]


@every_caller
async def test_a_savepoint_that_is_rolled_back_takes_its_jobs_along(place: Place, caller: Caller) -> None:
    before, inside, after = new_job(), new_job(), new_job()
    await caller.write(1)
    await caller.enqueue(place.store, Enqueue([before]))
    await caller.savepoint()
    await caller.write(2)
    await caller.enqueue(place.store, Enqueue([inside]))
    await caller.back()
    await caller.enqueue(place.store, Enqueue([after]))

    await caller.commit()

    assert (place.jobs(before.id, inside.id, after.id), place.business()) == ([True, False, True], [1])


@every_caller
async def test_a_savepoint_that_is_kept_is_still_the_callers_to_undo(place: Place, caller: Caller) -> None:
    job = new_job()
    await caller.write(1)
    await caller.savepoint()
    await caller.enqueue(place.store, Enqueue([job]))
    await caller.keep()

    await caller.rollback()

    assert (place.jobs(job.id), place.business()) == ([False], [])


@every_caller
async def test_a_duplicate_key_does_not_break_the_callers_transaction(place: Place, caller: Caller) -> None:
    [holder] = place.store.do(Enqueue([new_job(key="taken")]))
    fresh = new_job(key="fresh")
    await caller.write(1)

    answers = await caller.enqueue(place.store, Enqueue([new_job(key="taken"), fresh, new_job(key="fresh")]))
    await caller.write(2)
    again = await caller.enqueue(place.store, Enqueue([new_job(key="fresh")]))
    await caller.commit()

    assert answers == [Enqueued(holder.id, True), Enqueued(fresh.id), Enqueued(fresh.id, True)]
    assert again == [Enqueued(fresh.id, True)]
    assert (place.jobs(fresh.id), place.business()) == ([True], [1, 2])


@every_caller
async def test_a_refusal_leaves_the_callers_transaction_usable(place: Place, caller: Caller) -> None:
    place.store.do(Enqueue([new_job(payload={"n": 1}, key="k")]))
    place.store.do(SetQueues({"shut": QueuePolicy()}, actor="ann"))
    place.store.do(SetGate("queue:shut", is_open=False, actor="ann"))
    lost, kept = new_job(), new_job()
    await caller.write(1)

    with pytest.raises(KeyConflict):
        await caller.enqueue(place.store, Enqueue([lost, new_job(payload={"n": 2}, key="k")]))
    with pytest.raises(UnknownQueue):
        await caller.enqueue(place.store, Enqueue([new_job(queue="nowhere")]))
    with pytest.raises(GateClosed):
        await caller.enqueue(place.store, Enqueue([new_job(queue="shut")]))
    await caller.write(2)
    await caller.enqueue(place.store, Enqueue([kept]))
    await caller.commit()

    assert (place.jobs(lost.id, kept.id), place.business()) == ([False, True], [1, 2])


class Bell:
    """Counts wake-ups."""

    def __init__(self) -> None:
        self.rings = 0
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.rings += 1
            self._changed.notify_all()

    async def wait_for(self, rings: int) -> None:
        await anyio.to_thread.run_sync(self._wait, rings)

    def _wait(self, rings: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.rings >= rings, 15), f"{self.rings} of {rings} wake-ups came"


@every_caller
async def test_the_wake_up_comes_with_the_commit(place: Place, caller: Caller) -> None:
    place.store.do(SetQueues({"mail": QueuePolicy(), "other": QueuePolicy()}, actor="ann"))
    connected, mail, other = Bell(), Bell(), Bell()
    subscriptions = [place.store.subscribe(["none"], connected)]
    if place.engine == "postgres":
        await connected.wait_for(1)  # a listener wakes all its subscribers when it has connected
    subscriptions += [place.store.subscribe(["mail"], mail), place.store.subscribe(["other"], other)]
    await caller.enqueue(place.store, Enqueue([new_job(queue="mail")]))
    if place.engine == "postgres":
        # Another transaction is heard of first, although it came later. On SQLite it would have to wait for this one.
        with psycopg.connect(place.url, autocommit=True) as connection:
            place.store.enqueue_on(connection, Enqueue([new_job(queue="other")]))
        await other.wait_for(1)
        assert mail.rings == 0
    before = mail.rings

    await caller.commit()

    await mail.wait_for(before + 1)
    for subscription in subscriptions:
        subscription.close()


# --- where there is no transaction to join ----------------------------------------------------------------------------


@on_postgres
async def test_a_connection_that_commits_by_itself_enqueues_at_once_on_postgres(place: Place) -> None:
    jobs = [new_job() for _ in range(4)]
    engine = sqlalchemy.create_engine(sqlalchemy_url(place.url), isolation_level="AUTOCOMMIT")
    async_engine = create_async_engine(sqlalchemy_url(place.url, "asyncpg"), isolation_level="AUTOCOMMIT")

    with psycopg.connect(place.url, autocommit=True) as plain:
        place.store.enqueue_on(plain, Enqueue([jobs[0]]))
        assert place.jobs(jobs[0].id) == [True]
    connection = await asyncpg.connect(place.url)
    await place.store.aenqueue_on(connection, Enqueue([jobs[1]]))
    await connection.close()
    with engine.connect() as bound:
        place.store.enqueue_on(bound, Enqueue([jobs[2]]))
    async with async_engine.connect() as async_bound:
        await place.store.aenqueue_on(async_bound, Enqueue([jobs[3]]))
    engine.dispose()
    await async_engine.dispose()

    assert place.jobs(*(job.id for job in jobs)) == [True] * 4


@on_sqlite
async def test_a_connection_that_commits_by_itself_enqueues_at_once_on_sqlite(place: Place) -> None:
    first, refused = new_job(), new_job()
    plain = sqlite3.connect(path_of(place.url), isolation_level=None)

    place.store.enqueue_on(plain, Enqueue([first]))
    with pytest.raises(UnknownQueue):
        place.store.enqueue_on(plain, Enqueue([refused, new_job(queue="nowhere")]))

    assert not plain.in_transaction
    plain.close()
    assert place.jobs(first.id, refused.id) == [True, False]


@pytest.mark.parametrize("place", [engine_param(e, name="any") for e in CALLERS], indirect=True)
async def test_django_outside_of_atomic_commits_at_once(place: Place) -> None:
    caller, job = DjangoConnection(), new_job()
    await caller.open(place.url)
    await caller.commit()

    await caller.enqueue(place.store, Enqueue([job]))

    assert place.jobs(job.id) == [True]
    await caller.close()


# --- connections with habits of their own -----------------------------------------------------------------------------


@on_postgres
async def test_factories_and_codecs_of_the_callers_do_not_matter(place: Place) -> None:
    import json

    [holder] = place.store.do(Enqueue([new_job(key="k")]))
    connection = await asyncpg.connect(place.url)
    await connection.set_type_codec("json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")

    with psycopg.connect(place.url, row_factory=dict_row, cursor_factory=psycopg.RawCursor) as plain:
        by_psycopg = place.store.enqueue_on(plain, Enqueue([new_job(key="k")]))
    by_asyncpg = await place.store.aenqueue_on(connection, Enqueue([new_job(key="k")]))
    await connection.close()

    assert by_psycopg == by_asyncpg == [Enqueued(holder.id, True)]


@on_postgres
async def test_a_transaction_that_was_begun_by_hand_is_joined_by_asyncpg_too(place: Place) -> None:
    job = new_job()
    connection = await asyncpg.connect(place.url)
    await connection.execute("BEGIN")

    await place.store.aenqueue_on(connection, Enqueue([job]))
    await connection.execute("ROLLBACK")
    await connection.close()

    assert place.jobs(job.id) == [False]


@on_postgres
async def test_a_connection_from_a_pool_is_as_good(place: Place) -> None:
    job = new_job()
    pool = await asyncpg.create_pool(place.url, min_size=1, max_size=1)
    async with pool.acquire() as connection, connection.transaction():
        await place.store.aenqueue_on(connection, Enqueue([job]))
        assert place.jobs(job.id) == [False]
    await pool.close()

    assert place.jobs(job.id) == [True]


@pytest.mark.parametrize("place", [engine_param(e, name="any") for e in CALLERS], indirect=True)
async def test_a_scoped_session_is_as_good_as_its_session(place: Place) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url(place.url))
    session = scoped_session(sessionmaker(engine))
    job = new_job()

    place.store.enqueue_on(session, Enqueue([job]))
    assert place.jobs(job.id) == [False]
    session.commit()
    session.remove()
    engine.dispose()

    assert place.jobs(job.id) == [True]


# --- what cannot work says so -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [engine_param(e, name="any") for e in CALLERS], indirect=True)
async def test_what_is_no_connection_is_refused(place: Place) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url(place.url))

    for thing in (object(), place.url, None, 7, engine):
        with pytest.raises(ConfigError, match="Hand in"):
            place.store.enqueue_on(thing, Enqueue([new_job()]))
        with pytest.raises(ConfigError):
            await place.store.aenqueue_on(thing, Enqueue([new_job()]))


@on_postgres
async def test_a_connection_to_another_engine_is_refused(place: Place, tmp_path: Path) -> None:
    sqlite_store = open_sqlite(tmp_path / "jobs.db")
    plain = sqlite3.connect(tmp_path / "jobs.db")
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'jobs.db'}")
    bound = engine.connect()

    for connection in (plain, bound):
        with pytest.raises(ConfigError, match=r"(?i)postgresql"):
            place.store.enqueue_on(connection, Enqueue([new_job()]))
    with psycopg.connect(place.url) as other, pytest.raises(ConfigError, match="SQLite"):
        sqlite_store.enqueue_on(other, Enqueue([new_job()]))
    plain.close()
    bound.close()
    engine.dispose()
    sqlite_store.close()


@on_sqlite
async def test_a_connection_to_another_file_is_refused(place: Place, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")

    with pytest.raises(ConfigError, match=r"other\.db"):
        place.store.enqueue_on(other, Enqueue([new_job()]))
    other.close()


@on_postgres
async def test_sync_and_async_connections_are_not_mixed_up(place: Place) -> None:
    connection = await asyncpg.connect(place.url)
    async_psycopg = await psycopg.AsyncConnection.connect(place.url)

    for wrong in (connection, async_psycopg):
        with pytest.raises(ConfigError, match="aenqueue"):
            place.store.enqueue_on(wrong, Enqueue([new_job()]))
    with psycopg.connect(place.url) as plain, pytest.raises(ConfigError, match="not async"):
        await place.store.aenqueue_on(plain, Enqueue([new_job()]))
    await connection.close()
    await async_psycopg.close()


FAILING = [kind for kind in CALLERS["postgres"] if issubclass(kind, PlainPsycopg | DjangoConnection)] + [
    kind for kind in CALLERS["postgres"] if kind.__name__ in {"SqlalchemySession", "Asyncpg", "AsyncSqlalchemySession"}
]


@pytest.mark.parametrize(
    ("place", "caller"), [engine_param("postgres", kind, name=kind.__name__) for kind in FAILING], indirect=True
)
async def test_a_transaction_that_has_failed_before_says_so(place: Place, caller: Caller) -> None:
    await caller.write(1)
    with pytest.raises(Exception, match="no_such_table"):
        await caller.stumble()

    with pytest.raises(UsageError, match="already failed"):
        await caller.enqueue(place.store, Enqueue([new_job()]))

    await caller.rollback()
    assert place.business() == []

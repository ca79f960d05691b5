"""The poll of an idle worker takes the connection that listens, whatever happens to either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from tenure.errors import GateClosed, StoreUnavailable
from tenure.model.ids import WorkerId
from tenure.store.admin import SetGate
from tenure.store.contract import Claim, Exchange, Exchanged
from tenure.store.postgres import listen
from tenure.store.postgres.store import PostgresStore
from tests.postgres.test_listen import Bell, Wire
from tests.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

BLOCKED = (
    "SELECT application_name FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)
LOOK = Exchange((), Claim(WorkerId("w1"), ["default"], limit=10))


@asynccontextmanager
async def listening(
    url: str, *, reply_seconds: float = 60.0, ping_seconds: float = listen.PING_SECONDS
) -> AsyncIterator[tuple[PostgresStore, Bell]]:
    """A store that listens on this loop."""
    store, bell = PostgresStore(url, reply_seconds=reply_seconds), Bell()
    store._listener = listen.Listener(url, ping_seconds=ping_seconds)
    subscription = store.subscribe(["default"], bell, asyncio.get_running_loop())
    await until(lambda: bell.rings == 1)
    try:
        yield store, bell
    finally:
        subscription.close()
        await store.aclose()


async def poll(store: PostgresStore) -> Exchanged:
    return await store.ado(LOOK, may_block=True)


def listener(store: PostgresStore) -> listen.Listener:
    assert store._listener is not None
    return store._listener


def sessions(admin: psycopg.Connection, words: str) -> list[str]:
    """Who said this last."""
    found = admin.execute(
        "SELECT application_name FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE %s", [f"%{words}%"]
    )
    return [name for (name,) in found]


@pytest.fixture
def wire(url: str) -> Iterator[Wire]:
    made = Wire(url)
    yield made
    made.close()


async def test_an_idle_poll_takes_the_connection_that_listens_and_others_do_not(
    url: str, admin: psycopg.Connection
) -> None:
    async with listening(url) as (store, _):
        await poll(store)
        assert sessions(admin, "claim_few") == ["tenure listen"]

        await store.ado(LOOK)

        assert sorted(sessions(admin, "claim_few")) == ["tenure", "tenure listen"]


async def test_a_line_that_polls_is_not_asked(url: str, admin: psycopg.Connection) -> None:
    """Each poll puts the question off for as long as it would have been silent; without polls it comes."""
    async with listening(url, ping_seconds=1.0) as (store, _):
        loop = asyncio.get_running_loop()
        for _turn in range(5):
            before = loop.time()
            await poll(store)
            ear = listener(store).free_ear(loop)
            assert ear is not None
            assert ear._alarm is not None
            assert ear._alarm.when() >= before + 1.0
        assert sessions(admin, "SELECT 1") == []

        await until(lambda: sessions(admin, "SELECT 1") == ["tenure listen"])


async def test_a_notification_that_comes_with_the_answer_is_heard(url: str, admin: psycopg.Connection) -> None:
    async with listening(url) as (store, bell):
        for turn in range(2, 30):
            send = asyncio.to_thread(admin.execute, "SELECT pg_notify('tenure', 'default')")
            sending = asyncio.create_task(send)
            while not sending.done():
                await poll(store)
                await asyncio.sleep(0)
            await until(lambda: bell.rings == turn, seconds=5.0)  # noqa: B023 - asked within this turn only


async def test_a_poll_that_is_refused_leaves_the_connection_as_it_is(url: str) -> None:
    async with listening(url) as (store, _):
        await store.ado(SetGate("worker", is_open=False, actor="me"))

        with pytest.raises(GateClosed):
            await poll(store)

        await store.ado(SetGate("worker", is_open=True, actor="me"))
        assert (await poll(store)).grants == []
        assert listener(store).stats().connects == 1


async def test_a_poll_whose_answer_does_not_come_is_given_up_with_its_connection(wire: Wire) -> None:
    async with listening(wire.url, reply_seconds=0.3) as (store, bell):
        await poll(store)
        wire.silent.set()

        with pytest.raises(StoreUnavailable):
            await poll(store)

        assert listener(store).free_ear(asyncio.get_running_loop()) is None
        wire.silent.clear()
        await until(lambda: bell.rings == 2)
        await poll(store)


async def test_a_poll_that_is_cancelled_takes_the_connection_with_it(wire: Wire) -> None:
    async with listening(wire.url) as (store, bell):
        await poll(store)
        wire.silent.set()
        polling = asyncio.create_task(poll(store))
        await until(lambda: listener(store).free_ear(asyncio.get_running_loop()) is None)

        polling.cancel()

        with pytest.raises(asyncio.CancelledError):
            await polling
        wire.silent.clear()
        await until(lambda: bell.rings == 2)
        assert listener(store).stats().connects == 2


async def test_a_session_that_is_cut_during_a_poll_fails_it_and_comes_back(url: str, admin: psycopg.Connection) -> None:
    async with listening(url) as (store, bell):
        await poll(store)
        with psycopg.connect(url) as locker:
            locker.execute("LOCK TABLE tenure.queue IN ACCESS EXCLUSIVE MODE")
            polling = asyncio.create_task(poll(store))
            await until(lambda: admin.execute(BLOCKED).fetchall() == [("tenure listen",)])
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure listen'"
            )

            with pytest.raises(StoreUnavailable):
                await polling
        await until(lambda: bell.rings == 2)
        await poll(store)

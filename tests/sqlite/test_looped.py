"""Wake-ups read by the event loop that waits for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.store.sqlite import wake
from tenure.store.sqlite.sockets import Postman
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import in_fork, put
from tests.waiting import until, wait_until


@pytest.fixture(autouse=True)
def _no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only datagrams wake."""
    monkeypatch.setattr(wake, "POLL_SECONDS", 600.0)


@pytest.fixture
def send(store: SqliteStore, path: Path) -> Callable[[bytes], None]:
    """What another process would do: a datagram to every mailbox."""

    def act(message: bytes) -> None:
        postman = Postman(path)
        postman.send(message, own=None)
        postman.close()

    return act


class Ear:
    """Which threads were woken, by a subscription on the running loop."""

    def __init__(self, store: SqliteStore, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.heard: list[int] = []
        self.subscription = store.subscribe(
            ["default"], lambda: self.heard.append(threading.get_ident()), loop or asyncio.get_running_loop()
        )

    async def hears(self, times: int = 1) -> None:
        await until(lambda: len(self.heard) >= times)


def is_read_by(store: SqliteStore, loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether this loop reads the socket; None: the thread does."""
    listener = store._database.hub._listener
    assert listener is not None
    reader = listener._reader
    return reader is None if loop is None else reader is not None and reader.loop is loop and reader.is_reading


def in_thread(act: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_the_loop_reads_a_datagram_itself(store: SqliteStore, send: Callable[[bytes], None]) -> None:
    async def work() -> list[int]:
        ear = Ear(store)
        await until(lambda: is_read_by(store, asyncio.get_running_loop()))
        send(b"qelsewhere")
        send(b"qdefault\nelsewhere")
        await ear.hears()
        send(b"*")
        await ear.hears(2)
        ear.subscription.close()
        return ear.heard

    assert set(asyncio.run(work())) == {threading.get_ident()}


def test_a_commit_in_the_same_process_wakes_on_the_loop_too(store: SqliteStore) -> None:
    async def work() -> list[int]:
        ear = Ear(store)
        await asyncio.to_thread(put, store)
        await ear.hears()
        ear.subscription.close()
        return ear.heard

    assert asyncio.run(work()) == [threading.get_ident()]


def test_with_two_loops_the_thread_reads_for_both_and_with_one_left_that_one(
    store: SqliteStore, send: Callable[[bytes], None]
) -> None:
    threads: dict[str, int] = {}
    steps = {name: threading.Event() for name in ("subscribed", "heard", "over")}

    async def other() -> None:
        threads["other"] = threading.get_ident()
        ear = Ear(store)
        steps["subscribed"].set()
        await ear.hears()
        assert set(ear.heard) == {threads["other"]}
        steps["heard"].set()
        await asyncio.to_thread(steps["over"].wait, 10)
        ear.subscription.close()

    async def work() -> None:
        here = asyncio.get_running_loop()
        ear = Ear(store)
        await until(lambda: is_read_by(store, here))
        thread = in_thread(lambda: asyncio.run(other()))
        await until(steps["subscribed"].is_set)
        assert is_read_by(store, None)
        send(b"qdefault")
        await ear.hears()
        await until(steps["heard"].is_set)
        steps["over"].set()
        await until(lambda: not thread.is_alive())
        await until(lambda: is_read_by(store, here))
        send(b"qdefault")
        await ear.hears(2)
        assert set(ear.heard) == {threading.get_ident()}
        ear.subscription.close()

    asyncio.run(work())


def test_a_subscriber_without_a_loop_is_served_by_the_thread(store: SqliteStore, send: Callable[[bytes], None]) -> None:
    async def work() -> None:
        ear = Ear(store)
        heard = threading.Event()
        plain = store.subscribe(["default"], heard.set)
        assert is_read_by(store, None)
        send(b"qdefault")
        await ear.hears()
        await until(heard.is_set)
        plain.close()
        await until(lambda: is_read_by(store, asyncio.get_running_loop()))
        ear.subscription.close()

    asyncio.run(work())


def test_closing_on_another_thread_takes_the_socket_from_the_loop(
    store: SqliteStore, path: Path, send: Callable[[bytes], None]
) -> None:
    async def work() -> None:
        ear = Ear(store)
        listener = store._database.hub._listener
        assert listener is not None
        await until(lambda: is_read_by(store, asyncio.get_running_loop()))
        reader = listener._reader
        assert reader is not None
        await asyncio.to_thread(ear.subscription.close)
        await until(lambda: reader._socket.fileno() < 0)
        await until(lambda: list(Path(f"{path}-tenure").glob("*.sock")) == [])
        send(b"*")
        again = Ear(store)  # its descriptors may have the same numbers
        await until(lambda: is_read_by(store, asyncio.get_running_loop()))
        send(b"*")
        await again.hears()
        assert ear.heard == []
        again.subscription.close()

    asyncio.run(work())


def test_a_closed_loop_keeps_nobody_else_from_hearing(store: SqliteStore, send: Callable[[bytes], None]) -> None:
    async def subscribe() -> Ear:
        ear = Ear(store)
        await until(lambda: is_read_by(store, asyncio.get_running_loop()))
        return ear

    async def listen() -> None:
        ear = Ear(store)
        await until(lambda: is_read_by(store, asyncio.get_running_loop()))
        send(b"qdefault")
        await ear.hears()
        ear.subscription.close()

    left = asyncio.run(subscribe())
    send(b"qdefault")
    put(store)
    asyncio.run(listen())

    assert left.heard == []
    left.subscription.close()
    left.subscription.close()


def test_a_subscription_on_a_closed_loop_is_no_error(store: SqliteStore, send: Callable[[bytes], None]) -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    ear = Ear(store, loop)
    send(b"qdefault")
    put(store)

    assert ear.heard == []
    ear.subscription.close()


class PlainLoop(asyncio.SelectorEventLoop):
    """A loop that watches no descriptors for us, as one on Windows."""

    def add_reader(self, *_: Any) -> None:  # type: ignore[override]
        raise NotImplementedError

    def remove_reader(self, *_: Any) -> bool:
        raise NotImplementedError


def test_a_loop_that_cannot_read_is_woken_by_the_thread(store: SqliteStore, send: Callable[[bytes], None]) -> None:
    async def work() -> list[int]:
        ear = Ear(store)
        await asyncio.sleep(0)
        send(b"qdefault")
        await ear.hears()
        ear.subscription.close()
        return ear.heard

    with asyncio.Runner(loop_factory=PlainLoop) as runner:
        assert set(runner.run(work())) == {threading.get_ident()}


def test_a_flood_shares_wake_ups(
    store: SqliteStore, send: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "LEAST_SECONDS", 0.3)

    async def work() -> int:
        ear = Ear(store)
        await until(lambda: is_read_by(store, asyncio.get_running_loop()))
        send(b"qdefault")
        await ear.hears()
        for _ in range(50):
            send(b"qdefault")
        await ear.hears(2)
        ear.subscription.close()
        return len(ear.heard)

    assert asyncio.run(work()) <= 3


def test_an_announcement_read_by_the_loop_makes_the_thread_poll(
    store: SqliteStore, send: Callable[[bytes], None]
) -> None:
    async def work() -> None:
        ear = Ear(store)
        listener = store._database.hub._listener
        assert listener is not None
        await until(lambda: is_read_by(store, asyncio.get_running_loop()))
        before = listener._version
        send(b"s")
        await until(lambda: listener._version != before)
        ear.subscription.close()

    asyncio.run(work())


def test_a_fork_leaves_the_parents_loop_its_socket(store: SqliteStore, send: Callable[[bytes], None]) -> None:
    async def work() -> None:
        ear = Ear(store)
        await until(lambda: is_read_by(store, asyncio.get_running_loop()))
        job_id = in_fork(lambda: put(store))
        await ear.hears()  # of the child's job, by its datagram
        heard = len(ear.heard)
        send(b"qdefault")
        await ear.hears(heard + 1)
        assert job_id
        ear.subscription.close()

    asyncio.run(work())


def test_closing_the_store_ends_the_reading(store: SqliteStore, path: Path) -> None:
    async def work() -> None:
        ear = Ear(store)
        await until(lambda: is_read_by(store, asyncio.get_running_loop()))
        await store.aclose()
        assert not ear.subscription.is_alive()
        ear.subscription.close()
        await asyncio.sleep(0)

    asyncio.run(work())
    wait_until(lambda: list(Path(f"{path}-tenure").glob("*.sock")) == [])

"""Wake-ups (F14, F15): they arrive, they come back after every cut, and a deaf listener knows that it is deaf."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tenure.model.ids import WorkerId
from tenure.store.contract import Cancel, Claim, Enqueue
from tenure.store.postgres.listener import Listener, ListeningConnection
from tenure.store.postgres.store import PostgresStore
from tests.conformance.acts import new_job
from tests.waiting import wait_until

pytestmark = pytest.mark.postgres

PING_SECONDS = 0.25


class Bell:
    """Counts wake-ups and lets a test wait for the next."""

    def __init__(self) -> None:
        self.rings = 0
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.rings += 1
            self._changed.notify_all()

    def wait_for(self, rings: int, seconds: float = 15.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.rings >= rings, seconds), (
                f"{self.rings} of {rings} wake-ups came"
            )


class Wire:
    """A proxy to PostgreSQL that can go silent without closing anything: both ends see a half-open connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        self._target = (parts.hostname, parts.port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(f":{parts.port}/", f":{self._server.getsockname()[1]}/")
        self.silent = threading.Event()
        self._closing = threading.Event()
        self._bell = os.pipe()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self._closing.set()
        os.write(self._bell[1], b"x")
        for thread in self._threads:
            thread.join()
        self._server.close()
        for end in self._bell:
            os.close(end)

    def _accept(self) -> None:
        while self._readable(self._server):
            client, _ = self._server.accept()
            thread = threading.Thread(target=self._carry, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _carry(self, client: socket.socket) -> None:
        """Bytes that come while the wire is silent are swallowed, for this connection and for good."""
        deaf = False
        with client, socket.create_connection(self._target) as server, contextlib.suppress(OSError):
            while ready := self._readable(client, server):
                for source in ready:
                    data = source.recv(65536)
                    deaf = deaf or self.silent.is_set()
                    if not data and not deaf:
                        return
                    if not data:
                        continue
                    if not deaf:
                        (server if source is client else client).sendall(data)

    def _readable(self, *sockets: socket.socket) -> list[socket.socket]:
        watched = [*(s.fileno() for s in sockets), self._bell[0]]
        ready, _, _ = select.select(watched, [], [])
        return [] if self._closing.is_set() else [s for s in sockets if s.fileno() in ready]


@pytest.fixture
def notify(admin: psycopg.Connection) -> Callable[[str], None]:
    def send(payload: str) -> None:
        admin.execute("SELECT pg_notify('tenure', %s)", [payload])

    return send


@pytest.fixture
def listener(url: str) -> Iterator[Listener]:
    made = Listener(url, ping_seconds=PING_SECONDS)
    yield made
    made.close()


def wait_until_it_listens(listener: Listener) -> None:
    """A subscription that came before is woken then; one that comes after is woken by notifications alone."""
    wait_until(lambda: listener.stats().connects >= 1)


@pytest.fixture
def wire(url: str) -> Iterator[Wire]:
    made = Wire(url)
    yield made
    made.close()


def test_a_subscriber_is_woken_for_its_own_queues(listener: Listener, notify: Callable[[str], None]) -> None:
    mail, other = Bell(), Bell()
    listener.subscribe(["mail", "letters"], mail)
    mail.wait_for(1)  # it subscribed before the listener listened
    listener.subscribe(["other"], other)

    notify("letters")
    notify("nobody's")
    notify("mail")

    mail.wait_for(3)
    wait_until(lambda: listener.stats().notifications == 3)
    assert other.rings == 0


def test_a_cancel_wakes_everybody(listener: Listener, notify: Callable[[str], None]) -> None:
    one, two = Bell(), Bell()
    listener.subscribe(["a"], one)
    one.wait_for(1)
    listener.subscribe(["b"], two)

    notify("cancel:host-1-abc")

    one.wait_for(2)
    two.wait_for(1)


def test_a_closed_subscription_is_woken_no_more_and_the_rest_is(
    listener: Listener, notify: Callable[[str], None]
) -> None:
    gone, there = Bell(), Bell()
    subscription = listener.subscribe(["a"], gone)
    gone.wait_for(1)
    listener.subscribe(["a"], there)
    subscription.close()
    subscription.close()

    notify("a")

    there.wait_for(1)
    assert gone.rings == 1


def test_a_subscriber_that_raises_does_not_make_the_others_deaf(
    listener: Listener, notify: Callable[[str], None]
) -> None:
    def explode() -> None:
        raise RuntimeError("a subscriber's own trouble")

    bell = Bell()
    listener.subscribe(["a"], explode)
    wait_until_it_listens(listener)
    listener.subscribe(["a"], bell)

    notify("a")

    bell.wait_for(1)


def test_a_listener_is_alive_once_it_listens_and_not_after_it_was_closed(listener: Listener) -> None:
    assert not listener.is_alive()
    bell = Bell()

    subscription = listener.subscribe(["a"], bell)

    bell.wait_for(1)
    assert subscription.is_alive()
    listener.close()
    listener.close()
    assert not subscription.is_alive()


def test_a_silent_line_is_asked_and_stays_alive(listener: Listener) -> None:
    bell = Bell()
    subscription = listener.subscribe(["a"], bell)
    bell.wait_for(1)
    started_at = time.monotonic()

    wait_until(lambda: time.monotonic() - started_at > 4 * PING_SECONDS)

    assert subscription.is_alive()
    assert listener.stats().connects == 1


def test_a_listener_sleeps_until_the_server_says_something(
    url: str, notify: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default psycopg looks up ten times a second while it waits: most of what an idle worker cost."""
    intervals: list[float] = []
    waits = psycopg.Connection.wait

    def wait(self: Any, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        if isinstance(self, ListeningConnection):
            intervals.append(interval)
        return waits(self, gen, interval, timeout)

    monkeypatch.setattr(psycopg.Connection, "wait", wait)
    listener = Listener(url)
    bell = Bell()
    listener.subscribe(["a"], bell)
    bell.wait_for(1)
    notify("a")
    bell.wait_for(2)
    listener.close()

    assert intervals
    assert min(intervals) >= 10


def test_a_session_that_is_cut_comes_back_and_wakes_everybody(
    listener: Listener, admin: psycopg.Connection, notify: Callable[[str], None]
) -> None:
    bell = Bell()
    listener.subscribe(["a"], bell)
    bell.wait_for(1)

    admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure listen'")

    bell.wait_for(2)  # what was missed meanwhile is not known, so everybody looks
    notify("a")
    bell.wait_for(3)
    assert listener.stats().failures == 1


def test_a_cut_is_noticed_by_itself_not_by_the_next_question(url: str, admin: psycopg.Connection) -> None:
    listener, bell = Listener(url, ping_seconds=3600.0), Bell()
    listener.subscribe(["a"], bell)
    bell.wait_for(1)

    admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure listen'")

    bell.wait_for(2)
    assert listener.stats().connects == 2
    listener.close()


def test_a_half_open_connection_is_noticed_and_replaced(wire: Wire, notify: Callable[[str], None]) -> None:
    """No byte arrives, no socket fails: only the question that stays unanswered tells (F14)."""
    listener = Listener(wire.url, ping_seconds=PING_SECONDS)
    bell = Bell()
    try:
        subscription = listener.subscribe(["a"], bell)
        bell.wait_for(1)
        wire.silent.set()

        wait_until(lambda: not subscription.is_alive(), seconds=15.0)

        wire.silent.clear()
        bell.wait_for(2)
        wait_until(subscription.is_alive)
        notify("a")
        bell.wait_for(3)
    finally:
        listener.close()


def test_a_server_that_is_away_is_tried_again_until_it_is_there(url: str) -> None:
    parts = urlsplit(url)
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
        listener = Listener(
            url.replace(f":{parts.port}/", f":{port}/") + "?connect_timeout=1", ping_seconds=PING_SECONDS
        )
        subscription = listener.subscribe(["a"], Bell())
    try:
        wait_until(lambda: listener.stats().failures >= 2)
        assert not subscription.is_alive()
    finally:
        listener.close()


def test_a_listener_that_is_still_connecting_is_closed_without_waiting_for_the_server(url: str) -> None:
    """The server takes the connection and never answers; with no time-out a close that waited would not return."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        listener = Listener(url.replace(f":{urlsplit(url).port}/", f":{port}/") + "?connect_timeout=0")
        listener.subscribe(["a"], Bell())
        line, _ = silent.accept()

        listener.close()

    line.close()
    wait_until(lambda: "tenure-listen" not in {thread.name for thread in threading.enumerate()})
    assert not listener.is_alive()


def test_a_child_after_a_fork_listens_on_a_connection_of_its_own(listener: Listener, url: str) -> None:
    bell = Bell()
    listener.subscribe(["a"], bell)
    bell.wait_for(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that this process has threads is the point
        child = os.fork()
    if child == 0:
        try:
            listener.close()  # the parent's business
            own = Bell()
            listener.subscribe(["a"], own)
            own.wait_for(1)
            listener.close()
            os._exit(0)
        finally:
            os._exit(1)

    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert listener.is_alive()


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    made = PostgresStore(url)
    yield made
    made.close()


def test_an_enqueue_wakes_a_subscriber(store: PostgresStore) -> None:
    bell = Bell()
    store.subscribe(["default"], bell)
    bell.wait_for(1)
    store.do(Enqueue([new_job()]))
    store.do(Claim(WorkerId("w1"), ["default"], limit=10))

    store.do(Enqueue([new_job()]))

    bell.wait_for(2)


def test_a_cancel_of_a_held_job_wakes_its_worker(store: PostgresStore) -> None:
    bell = Bell()
    store.subscribe(["elsewhere"], bell)
    [made] = store.do(Enqueue([new_job()]))
    [grant] = store.do(Claim(WorkerId("w1"), ["default"]))
    bell.wait_for(1)

    store.do(Cancel([made.id], actor="me", reason="no more"))

    assert grant.id == made.id
    bell.wait_for(2)


def test_jobs_that_come_due_wake_whoever_waits(store: PostgresStore, admin: psycopg.Connection) -> None:
    """One worker looks and takes what it has room for. Without a word to the others they would wait for their polls."""
    bell = Bell()
    store.subscribe(["default"], bell)
    bell.wait_for(1)
    store.do(Enqueue([new_job(delay_seconds=3600.0) for _ in range(3)]))
    store.do(Claim(WorkerId("w1"), ["default"]))
    admin.execute("UPDATE tenure.job SET run_at = tenure.now()")

    [grant] = store.do(Claim(WorkerId("w2"), ["default"], limit=1))

    assert grant.token == 1
    bell.wait_for(2)

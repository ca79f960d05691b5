"""Sync calls keep their promises, whether they wait asleep or awake."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

import tenure
from tenure.errors import StoreUnavailable
from tenure.store.postgres import awake, link
from tenure.store.postgres.store import PostgresStore
from tenure.store.queries import ListQueues
from tests.postgres.test_listen import Wire
from tests.waiting import wait_until

pytestmark = pytest.mark.postgres

LOCKED = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


class Counting(awake.Permit):
    """Counts the calls that stayed awake."""

    calls = 0

    def give(self, trouble: int) -> None:
        self.calls += 1
        super().give(trouble)


@pytest.fixture(params=["asleep", "awake", "awake for a minute"])
def permit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Counting | None:
    """None if all calls sleep. Otherwise each stays awake first, whatever the machine is like: for as long as ever, or
    until its answer comes, so that whatever happens happens to one who is awake."""
    if request.param == "asleep":
        return None
    made = Counting()
    monkeypatch.setattr(link, "PERMIT", made)
    monkeypatch.setattr(link, "processors", lambda: 2)
    monkeypatch.setattr(awake, "_SHORTEST_PAUSE", 0)
    monkeypatch.setattr(made, "_stay", 1_000_000)
    monkeypatch.setattr(awake, "_TOO_MUCH", 1_000_000)
    if request.param == "awake for a minute":
        monkeypatch.setattr(awake, "_BOUND_SECONDS", 60.0)
        monkeypatch.setattr(awake, "_AWAY_SECONDS", 60.0)
    return made


@pytest.fixture
def open_store(permit: Counting | None) -> Iterator[Callable[..., PostgresStore]]:
    made: list[PostgresStore] = []

    def open_it(url: str, *, reply_seconds: float = 60.0) -> PostgresStore:
        made.append(PostgresStore(url, pool_size=1, awake=permit is not None, reply_seconds=reply_seconds))
        return made[-1]

    yield open_it
    for store in made:
        store.close()


@pytest.fixture
def wire(url: str) -> Iterator[Wire]:
    made = Wire(url)
    yield made
    made.close()


def test_calls_are_answered(url: str, open_store: Callable[..., PostgresStore], permit: Counting | None) -> None:
    store = open_store(url)

    for _ in range(50):
        assert [queue.name for queue in store.do(ListQueues())] == ["default"]

    if permit is not None:
        assert permit.calls > 0


def test_a_call_without_an_answer_is_given_up_after_its_time(
    wire: Wire, open_store: Callable[..., PostgresStore]
) -> None:
    store = open_store(wire.url, reply_seconds=0.3)
    store.do(ListQueues())
    wire.silent.set()

    with pytest.raises(StoreUnavailable, match=r"gave no answer for 0\.3 s"):
        store.do(ListQueues())

    wire.silent.clear()
    assert store.do(ListQueues())


def test_a_signal_interrupts_a_call_that_waits(
    url: str, admin: psycopg.Connection, open_store: Callable[..., PostgresStore], permit: Counting | None
) -> None:
    store = open_store(url)
    store.do(ListQueues())
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        wait_until(lambda: admin.execute(LOCKED).fetchone())
        signal.pthread_kill(main, signal.SIGINT)

    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE tenure.queue IN ACCESS EXCLUSIVE MODE")
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            store.do(ListQueues())
        interrupter.join()

    assert store.do(ListQueues())
    assert permit is None or permit.take()


def test_a_connection_that_is_cut_while_a_call_waits_is_told_and_replaced(
    url: str, admin: psycopg.Connection, open_store: Callable[..., PostgresStore]
) -> None:
    store = open_store(url)
    store.do(ListQueues())

    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE tenure.queue IN ACCESS EXCLUSIVE MODE")
        cutter = threading.Thread(target=lambda: wait_until(lambda: admin.execute(CUT).fetchone()))
        cutter.start()
        with pytest.raises(StoreUnavailable):
            store.do(ListQueues())
        cutter.join()

    assert store.do(ListQueues())


def test_an_argument_that_does_not_fit_into_the_socket_is_sent_whole(
    url: str, open_store: Callable[..., PostgresStore]
) -> None:
    store = open_store(url)
    app = tenure.App(url, limits=tenure.Limits(payload_bytes=20_000_000))
    app._state.store = store
    text = "x" * 10_000_000

    made = app.enqueue("k", {"text": text})

    job = app.get(made.id)
    assert job is not None
    assert job.payload == {"text": text}


def test_nobody_stays_awake_where_there_is_one_processor(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "processors", lambda: 1)
    made = link.Link(url, 60.0)
    made.close()

    assert made._poll_first == made._reader.poll


@pytest.mark.parametrize(("parameter", "is_awake"), [("", True), ("?tenure_awake=1", True), ("?tenure_awake=0", False)])
def test_the_url_says_whether_calls_may_wait_awake(
    url: str, monkeypatch: pytest.MonkeyPatch, parameter: str, is_awake: bool
) -> None:
    monkeypatch.setattr(link, "processors", lambda: 2)

    with tenure.App(url + parameter) as app:
        app.now()
        store = app.store
        assert isinstance(store, PostgresStore)
        taken = store._pool.take()
        store._pool.give(taken)

    assert (taken._poll_first != taken._reader.poll) is is_awake

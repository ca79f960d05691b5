"""Wake-ups: in the same process, by datagram, and by the poll behind both."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sqlite3
import threading
from pathlib import Path

import pytest

from tenure.model.ids import new_job_id
from tenure.store.admin import PauseQueues, SetGate
from tenure.store.contract import Cancel, Claim, Enqueue
from tenure.store.sqlite import notify
from tenure.store.sqlite.notify import Mailbox, Sender
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import WORKER, job, put, start_child
from tests.waiting import wait_until

INSERT = """
INSERT INTO tenure_job (
    id, kind, payload, queue, profile, priority, rank, max_attempts, run_at, is_due, created_at, updated_at
)
VALUES (?, 'work', '{}', 'default', 'default', 0, 0, 3, 0, 1, 0, 0)
"""


class Subscriber:
    """Counts wake-ups."""

    def __init__(self, store: SqliteStore, *queues: str) -> None:
        self.woken = threading.Event()
        self.subscription = store.subscribe(queues or ("default",), self.woken.set)

    def waits(self, seconds: float = 10.0) -> bool:
        return self.woken.wait(seconds)


def test_a_subscriber_in_the_same_process_is_woken_before_the_enqueue_returns(store: SqliteStore) -> None:
    subscriber = Subscriber(store)

    put(store)

    assert subscriber.woken.is_set()
    subscriber.subscription.close()


def test_nobody_is_woken_for_another_queue_or_a_later_job(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "POLL_SECONDS", 60.0)
    subscriber, other = Subscriber(store, "default"), Subscriber(store, "elsewhere")
    later = job()

    store.do(Enqueue([type(later)(later.id, "work", delay_seconds=60)]))
    assert not subscriber.woken.is_set()
    put(store)

    assert subscriber.woken.is_set()
    assert not other.woken.is_set()
    subscriber.subscription.close()
    other.subscription.close()


def test_a_subscriber_in_another_process_is_woken_by_datagram(store: SqliteStore) -> None:
    child = start_child("listen", store.url)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"

    ids = []
    for _ in range(20):
        ids.append(put(store))
        assert child.stdout.readline() == f"{ids[-1]}\n"

    child.kill()
    child.communicate()


def test_the_socket_of_a_process_that_was_killed_is_removed(store: SqliteStore, path: Path) -> None:
    child = start_child("listen", store.url)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    folder = Path(f"{path}-tenure")
    assert len(list(folder.glob("*.sock"))) == 1
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()

    put(store)

    assert list(folder.glob("*.sock")) == []


def test_a_listener_in_a_process_with_thousands_of_open_files_hears(store: SqliteStore, path: Path) -> None:
    """`select` takes no descriptor above 1,023: the listener of a busy server was deaf, and logged a traceback twenty
    times a second."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        subscriber = Subscriber(store)
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute(INSERT, [new_job_id()])
        is_woken = subscriber.waits()
        subscriber.subscription.close()
    finally:
        for each in files:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert is_woken


def test_a_cancel_wakes_whoever_may_hold_the_job(store: SqliteStore) -> None:
    job_id = put(store)
    store.do(Claim(WORKER, ["default"]))
    subscriber = Subscriber(store, "elsewhere")

    store.do(Cancel([job_id], "ann", "no longer wanted"))

    assert subscriber.woken.is_set()
    subscriber.subscription.close()


def test_resuming_a_queue_wakes(store: SqliteStore) -> None:
    store.do(PauseQueues(["default"], paused=True, actor="ann"))
    put(store)
    subscriber = Subscriber(store)

    store.do(PauseQueues(["default"], paused=False, actor="ann"))

    assert subscriber.woken.is_set()
    subscriber.subscription.close()


def test_a_closed_notify_gate_keeps_wake_ups_back(store: SqliteStore) -> None:
    store.do(SetGate("notify", is_open=False, actor="ann"))
    subscriber = Subscriber(store)

    put(store)

    assert not subscriber.waits(0.2)
    store.do(SetGate("notify", is_open=True, actor="ann"))
    assert subscriber.waits()
    subscriber.subscription.close()


def test_a_job_inserted_by_another_program_is_found_by_the_poll(store: SqliteStore, path: Path) -> None:
    subscriber = Subscriber(store)
    with sqlite3.connect(path) as other:
        other.execute(INSERT, (new_job_id(),))
    other.close()

    assert subscriber.waits()
    subscriber.subscription.close()


def test_commits_with_nothing_to_claim_wake_nobody(store: SqliteStore, path: Path) -> None:
    subscriber = Subscriber(store)
    store.do(PauseQueues(["default"], paused=True, actor="ann"))
    listener = store._database.hub._listener
    assert listener is not None
    subscriber.woken.clear()
    with sqlite3.connect(path) as other:
        other.execute(INSERT, (new_job_id(),))
        seen = listener._version
    other.close()

    wait_until(lambda: listener._version != seen)

    assert not subscriber.woken.is_set()
    subscriber.subscription.close()


def test_a_job_in_a_callers_transaction_wakes_after_the_commit_and_not_before(store: SqliteStore, path: Path) -> None:
    subscriber = Subscriber(store)
    connection = sqlite3.connect(path)
    store.enqueue_on(connection, Enqueue([job()]))
    assert not subscriber.waits(0.1)

    connection.commit()

    assert subscriber.waits()
    connection.close()
    subscriber.subscription.close()


def test_datagrams_pass_where_the_path_is_too_long_for_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("deep-" * 30)
    folder.mkdir()
    database = folder / "jobs.db"
    mailbox, sender = Mailbox(database), Sender(database)
    assert mailbox.path is not None
    assert len(str(mailbox.path)) > 108

    sender.send(b"*", own=None)

    assert mailbox.receive() is None
    mailbox.close()
    sender.close()


def test_a_listener_that_does_not_read_costs_the_sender_nothing(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    mailbox, sender = Mailbox(database), Sender(database)

    for _ in range(2000):
        sender.send(b"qdefault", own=None)

    assert mailbox.receive() == {"default"}
    mailbox.close()
    sender.close()


def test_a_subscription_lives_until_it_is_closed(store: SqliteStore, path: Path) -> None:
    subscriber = Subscriber(store)
    assert subscriber.subscription.is_alive()

    subscriber.subscription.close()
    subscriber.subscription.close()
    put(store)

    assert not subscriber.subscription.is_alive()
    assert not subscriber.woken.is_set()
    assert list(Path(f"{path}-tenure").glob("*.sock")) == []


def test_a_callback_that_fails_costs_nobody_a_commit(store: SqliteStore) -> None:
    def broken() -> None:
        raise RuntimeError("on purpose")

    bad = store.subscribe(["default"], broken)
    subscriber = Subscriber(store)

    put(store)

    assert subscriber.woken.is_set()
    bad.close()
    subscriber.subscription.close()


def test_a_datagram_that_cannot_be_read_wakes_everybody_and_ends_nothing(store: SqliteStore) -> None:
    subscriber = Subscriber(store)
    listener = store._database.hub._listener
    assert listener is not None
    assert listener.mailbox.path is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        for message in (b"q\xff\xfe", b"", b"\x00" * 5000):
            other.sendto(message, str(listener.mailbox.path))

    assert subscriber.waits()
    subscriber.woken.clear()
    put(store)
    assert subscriber.woken.is_set()
    assert subscriber.subscription.is_alive()
    subscriber.subscription.close()


def test_sockets_in_a_folder_that_others_may_enter_are_ignored(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    mailbox, sender = Mailbox(database), Sender(database)
    assert mailbox.path is not None
    mailbox.path.parent.chmod(0o777)

    sender.send(b"*", own=None)

    assert mailbox.receive() == set()
    mailbox.close()
    sender.close()


def test_datagrams_that_follow_each_other_without_a_pause_do_not_keep_the_listener_from_looking(
    store: SqliteStore, path: Path
) -> None:
    """It looked at the file only after a pause, so what a caller's own transaction had put in was left to the poll of
    the workers for as long as other queues were busy."""
    subscriber = Subscriber(store)
    is_over = threading.Event()

    def send() -> None:
        sender = Sender(path)
        while not is_over.wait(0.002):
            sender.send(b"qelsewhere", None)
        sender.close()

    sending = threading.Thread(target=send)
    sending.start()
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute(INSERT, [new_job_id()])
    is_woken = subscriber.waits()
    is_over.set()
    sending.join()
    subscriber.subscription.close()

    assert is_woken

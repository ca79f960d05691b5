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


class Ear:
    """Counts wake-ups."""

    def __init__(self, store: SqliteStore, *queues: str) -> None:
        self.heard = threading.Event()
        self.subscription = store.subscribe(queues or ("default",), self.heard.set)

    def hears(self, seconds: float = 10.0) -> bool:
        return self.heard.wait(seconds)


def test_a_subscriber_in_the_same_process_is_woken_before_the_enqueue_returns(store: SqliteStore) -> None:
    ear = Ear(store)

    put(store)

    assert ear.heard.is_set()
    ear.subscription.close()


def test_nobody_is_woken_for_another_queue_or_a_later_job(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "POLL_SECONDS", 60.0)
    ear, other = Ear(store, "default"), Ear(store, "elsewhere")
    later = job()

    store.do(Enqueue([type(later)(later.id, "work", delay_seconds=60)]))
    assert not ear.heard.is_set()
    put(store)

    assert ear.heard.is_set()
    assert not other.heard.is_set()
    ear.subscription.close()
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
        ear = Ear(store)
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute(INSERT, [new_job_id()])
        heard = ear.hears()
        ear.subscription.close()
    finally:
        for each in files:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert heard


def test_a_cancel_wakes_whoever_may_hold_the_job(store: SqliteStore) -> None:
    job_id = put(store)
    store.do(Claim(WORKER, ["default"]))
    ear = Ear(store, "elsewhere")

    store.do(Cancel([job_id], "ann", "no longer wanted"))

    assert ear.heard.is_set()
    ear.subscription.close()


def test_resuming_a_queue_wakes(store: SqliteStore) -> None:
    store.do(PauseQueues(["default"], paused=True, actor="ann"))
    put(store)
    ear = Ear(store)

    store.do(PauseQueues(["default"], paused=False, actor="ann"))

    assert ear.heard.is_set()
    ear.subscription.close()


def test_a_closed_notify_gate_keeps_wake_ups_back(store: SqliteStore) -> None:
    store.do(SetGate("notify", is_open=False, actor="ann"))
    ear = Ear(store)

    put(store)

    assert not ear.hears(0.2)
    store.do(SetGate("notify", is_open=True, actor="ann"))
    assert ear.hears()
    ear.subscription.close()


def test_a_job_inserted_by_another_program_is_found_by_the_poll(store: SqliteStore, path: Path) -> None:
    ear = Ear(store)
    with sqlite3.connect(path) as other:
        other.execute(INSERT, (new_job_id(),))
    other.close()

    assert ear.hears()
    ear.subscription.close()


def test_commits_with_nothing_to_claim_wake_nobody(store: SqliteStore, path: Path) -> None:
    ear = Ear(store)
    store.do(PauseQueues(["default"], paused=True, actor="ann"))
    listener = store._database.hub._listener
    assert listener is not None
    ear.heard.clear()
    with sqlite3.connect(path) as other:
        other.execute(INSERT, (new_job_id(),))
        seen = listener._version
    other.close()

    wait_until(lambda: listener._version != seen)

    assert not ear.heard.is_set()
    ear.subscription.close()


def test_a_job_in_a_callers_transaction_wakes_after_the_commit_and_not_before(store: SqliteStore, path: Path) -> None:
    ear = Ear(store)
    connection = sqlite3.connect(path)
    store.enqueue_on(connection, Enqueue([job()]))
    assert not ear.hears(0.1)

    connection.commit()

    assert ear.hears()
    connection.close()
    ear.subscription.close()


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
    ear = Ear(store)
    assert ear.subscription.is_alive()

    ear.subscription.close()
    ear.subscription.close()
    put(store)

    assert not ear.subscription.is_alive()
    assert not ear.heard.is_set()
    assert list(Path(f"{path}-tenure").glob("*.sock")) == []


def test_a_callback_that_fails_costs_nobody_a_commit(store: SqliteStore) -> None:
    def broken() -> None:
        raise RuntimeError("on purpose")

    bad = store.subscribe(["default"], broken)
    ear = Ear(store)

    put(store)

    assert ear.heard.is_set()
    bad.close()
    ear.subscription.close()


def test_a_datagram_that_cannot_be_read_wakes_everybody_and_ends_nothing(store: SqliteStore) -> None:
    ear = Ear(store)
    listener = store._database.hub._listener
    assert listener is not None
    assert listener.mailbox.path is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        for message in (b"q\xff\xfe", b"", b"\x00" * 5000):
            other.sendto(message, str(listener.mailbox.path))

    assert ear.hears()
    ear.heard.clear()
    put(store)
    assert ear.heard.is_set()
    assert ear.subscription.is_alive()
    ear.subscription.close()


def test_sockets_in_a_folder_that_others_may_enter_are_ignored(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    mailbox, sender = Mailbox(database), Sender(database)
    assert mailbox.path is not None
    mailbox.path.parent.chmod(0o777)

    sender.send(b"*", own=None)

    assert mailbox.receive() == set()
    mailbox.close()
    sender.close()

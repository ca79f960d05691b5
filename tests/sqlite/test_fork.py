"""Forks: a store made before one works on both sides of it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tenure.model.ids import JobId
from tenure.store.queries import CountJobs, GetJobs
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import in_fork, put


def exists(store: SqliteStore, job_id: JobId) -> bool:
    return store.do(GetJobs([job_id]))[0] is not None


def test_parent_and_child_both_write(store: SqliteStore) -> None:
    before = put(store)
    assert exists(store, before)

    from_child = in_fork(lambda: (put(store), exists(store, before)))
    from_parent = put(store)

    assert from_child[1]
    assert exists(store, from_child[0])
    assert exists(store, from_parent)


def test_the_child_uses_connections_of_its_own(store: SqliteStore) -> None:
    put(store)
    parents = id(store._database.writer.writing.connection)

    def act() -> int:
        put(store)
        return id(store._database.writer.writing.connection)

    assert in_fork(act) != parents


def test_a_child_that_closes_its_store_leaves_the_parent_alone(store: SqliteStore, path: Path) -> None:
    first = put(store)

    def act() -> None:
        put(store)
        store.close()

    in_fork(act)

    assert Path(f"{path}-wal").exists()
    assert exists(store, first)
    assert exists(store, put(store))


def test_forks_under_load_leave_no_lock_behind(store: SqliteStore) -> None:
    stop = threading.Event()
    written: list[JobId] = []

    def load() -> None:
        while not stop.is_set():
            written.append(put(store))
            exists(store, written[-1])

    subscription = store.subscribe(["default"], lambda: None)
    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()

    children = [in_fork(lambda: put(store)) for _ in range(20)]
    stop.set()
    for thread in threads:
        thread.join(20)
    subscription.close()

    assert all(exists(store, job_id) for job_id in [*children, *written])


def test_a_fork_that_no_hook_told_of_is_noticed_by_the_pid(store: SqliteStore) -> None:
    put(store)
    database = store._database
    old = database.writer.writing.connection
    assert database.writer.pause(
        20
    )  # a real child has no such thread: here it is to wait for the queue that is forgotten
    database.pid = os.getpid() + 1

    put(store)

    assert database.writer.writing.connection is not old
    assert old is not None
    old.close()


def test_subscriptions_stay_with_the_parent(store: SqliteStore) -> None:
    heard = threading.Event()
    subscription = store.subscribe(["default"], heard.set)

    assert in_fork(subscription.is_alive) is False
    assert in_fork(lambda: put(store))

    assert heard.wait(10)
    assert subscription.is_alive()
    subscription.close()


def test_a_child_of_a_child_works_too(store: SqliteStore) -> None:
    put(store)

    grandchild = in_fork(lambda: (put(store), in_fork(lambda: put(store)))[1])

    assert exists(store, grandchild)
    assert sum(count.jobs for count in store.do(CountJobs())) == 3

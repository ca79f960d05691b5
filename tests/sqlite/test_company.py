"""An exchange tells whether other processes keep the file busy; a worker in such company keeps one large exchange in
flight instead of two small ones."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tenure.store.contract import Claim, Enqueue, Exchange, Exchanged
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import WORKER, job
from tests.waiting import wait_until

LIMIT = 60


def exchange(store: SqliteStore, limit: int = LIMIT) -> Exchanged:
    store.do(Enqueue([job() for _ in range(limit)]))
    exchanged = store.do(Exchange([], Claim(WORKER, ["default"], limit)))
    assert len(exchanged.grants) == limit
    return exchanged


def exchange_behind_another_process(store: SqliteStore, path: Path) -> Exchanged:
    """One that finds the file locked."""
    store.do(Enqueue([job() for _ in range(LIMIT)]))
    handle = store._database.writer.handle
    other, before = sqlite3.connect(path, isolation_level=None), handle.retries
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(store.do, Exchange([], Claim(WORKER, ["default"], LIMIT)))
        wait_until(lambda: handle.retries > before)
        other.execute("ROLLBACK")
        exchanged = answer.result(30)
    other.close()
    return exchanged


def test_whoever_has_to_wait_for_another_process_time_and_again_is_in_company(store: SqliteStore, path: Path) -> None:
    assert exchange(store).is_shared is not True

    told = [exchange_behind_another_process(store, path).is_shared for _ in range(4)]

    assert told == [False, False, True, True], "once or twice is chance"
    assert exchange(store, limit=10).is_shared is None
    assert [exchange(store).is_shared for _ in range(3)] == [True, False, False]

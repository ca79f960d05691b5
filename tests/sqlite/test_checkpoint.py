"""One connection checkpoints at a time, and the WAL stays small."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from tenure.model.ids import new_job_ids
from tenure.model.job import NewJob
from tenure.store.contract import Enqueue
from tenure.store.queries import GetJobs
from tenure.store.sqlite import checkpoint
from tenure.store.sqlite.connection import open_reader, open_writer
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import job, put


def setting(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_every_connection_is_durable_and_none_checkpoints_by_itself(store: SqliteStore, path: Path) -> None:
    for connection in (open_writer(path, 1.0), open_reader(path)):
        found = {name: setting(connection, name) for name in ("journal_mode", "synchronous", "wal_autocheckpoint")}
        assert found == {"journal_mode": "wal", "synchronous": 2, "wal_autocheckpoint": 0}
        assert (setting(connection, "mmap_size"), setting(connection, "foreign_keys")) == (0, 1)
        connection.close()


def test_the_wal_is_reused_instead_of_growing(store: SqliteStore, path: Path) -> None:
    wal = Path(f"{path}-wal")
    for _ in range(6):
        store.do(Enqueue([NewJob(job_id, "work", '"' + "x" * 5_000 + '"') for job_id in new_job_ids(700)]))
    largest = wal.stat().st_size
    for _ in range(12):
        store.do(Enqueue([NewJob(job_id, "work", '"' + "x" * 5_000 + '"') for job_id in new_job_ids(700)]))

    assert store._database.writer._checkpointer.runs > 3
    assert wal.stat().st_size <= largest * 1.5


def test_long_payloads_make_checkpoints_come_as_often_as_their_pages_ask_for(store: SqliteStore) -> None:
    checkpointer = store._database.writer._checkpointer
    found = []
    for _ in range(40):
        before = checkpointer.runs
        store.do(Enqueue([NewJob(job_id, "work", '"' + "x" * 5_000 + '"') for job_id in new_job_ids(200)]))
        if checkpointer.runs > before:
            found.append(checkpointer.wal_pages)

    assert len(found) > 3
    assert max(found[1:]) <= 3 * checkpoint.PAGES


def test_while_another_process_checkpoints_we_go_on_without(store: SqliteStore, path: Path) -> None:
    put(store)
    writer = store._database.writer
    assert writer.writing.connection is not None
    assert writer._checkpointer.run(writer.writing.connection)
    handle = os.open(f"{path}-tenure/checkpoint.lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)

    assert not writer._checkpointer.run(writer.writing.connection)

    os.close(handle)
    assert writer._checkpointer.run(writer.writing.connection)


def test_a_reader_that_never_ends_is_named_and_harms_no_write(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(store)
    monkeypatch.setattr(checkpoint, "MAX_BYTES", 1000)
    monkeypatch.setattr(checkpoint, "TRUNCATE_PAGES", 10)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM tenure_job").fetchone()

    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            store.do(Enqueue([job() for _ in range(3000)]))

    reader.close()
    assert "keeps a read transaction open" in caplog.text


def test_the_wal_stays_bounded_while_others_read_and_write(store: SqliteStore, path: Path) -> None:
    """Reads that never pause keep a checkpoint from using the WAL again from its start, so it is truncated."""
    stop = threading.Event()
    ids = new_job_ids(500)
    store.do(Enqueue([NewJob(job_id, "work") for job_id in ids]))

    def read() -> None:
        while not stop.is_set():
            store.do(GetJobs(ids))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    largest = 0
    for _ in range(20):
        store.do(Enqueue([NewJob(job_id, "work", '"' + "x" * 40_000 + '"') for job_id in new_job_ids(100)]))
        largest = max(largest, Path(f"{path}-wal").stat().st_size)
    stop.set()
    for reader in readers:
        reader.join(20)

    assert path.stat().st_size > checkpoint.MAX_BYTES
    assert largest < checkpoint.MAX_BYTES

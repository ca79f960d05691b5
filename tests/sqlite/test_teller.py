"""What a scribe has granted is told while it carries out the next exchange: in order, or not at all."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import StoreUnavailable
from tenure.model.ids import JobId
from tenure.store.contract import Claim, Exchange
from tenure.store.queries import GetJobs
from tenure.store.sqlite import one_statement, scribe
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import WORKER
from tests.sqlite.desks import Desk, at_desk, fill
from tests.waiting import until

MANY = 200


class InThisProcess:
    """A scribe on a thread, so that a test can hold it up. For its worker it is a process."""

    def __init__(self, command: list[str], pass_fds: tuple[int], **_: Any) -> None:
        path, busy_seconds = command[-2:]
        descriptor = os.dup(pass_fds[0])
        self._thread = threading.Thread(target=self._serve, args=(descriptor, Path(path), float(busy_seconds)))
        self._thread.start()

    @staticmethod
    def _serve(descriptor: int, path: Path, busy_seconds: float) -> None:
        with socket.socket(fileno=descriptor) as line:
            made = scribe.Scribe(line, path, busy_seconds)
            try:
                made.serve()
            finally:
                made._handle.drop()

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        return 0

    def kill(self) -> None: ...


@pytest.fixture
def store(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    monkeypatch.setattr("tenure.store.sqlite.dictation.subprocess.Popen", InThisProcess)
    made = SqliteStore(f"sqlite:///{path}")
    made.migrate()
    yield made
    made.close()


def running(store: SqliteStore, ids: list[JobId]) -> int:
    return sum(job is not None and job.state == "running" for job in store.do(GetJobs(ids)))


def test_the_next_exchange_is_carried_out_meanwhile_and_answers_keep_their_order(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, told = threading.Event(), one_statement.tell

    def slowly(connection: sqlite3.Connection, rowids: str, worker: str, now: int) -> Any:
        assert go_on.wait(10)
        return told(connection, rowids, worker, now)

    monkeypatch.setattr(scribe, "tell", slowly)

    async def act(_: Desk) -> None:
        ids = fill(store, 2 * MANY)
        asked = [asyncio.create_task(store.ado(Exchange([], Claim(WORKER, ["default"], MANY)))) for _ in range(2)]
        await until(lambda: running(store, ids) == 2 * MANY)
        assert not any(each.done() for each in asked)

        go_on.set()
        granted = [[grant.id for grant in (await each).grants] for each in asked]
        assert granted == [ids[:MANY], ids[MANY:]]

    at_desk(store, act)


def test_grants_that_cannot_be_told_of_are_an_unknown_outcome_and_are_granted_again(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: Any) -> Any:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(scribe, "tell", cannot)

    async def act(made: Desk) -> None:
        ids = fill(store, MANY)
        with pytest.raises(StoreUnavailable, match="not known whether the exchange took effect"):
            await store.ado(Exchange([], Claim(WORKER, ["default"], MANY)))
        assert made.dictation._line is None

        again = await store.ado(Exchange([], Claim(WORKER, ["default"], MANY, held=[])))
        assert [(grant.id, grant.token, grant.attempt) for grant in again.grants] == [(job_id, 1, 1) for job_id in ids]

    at_desk(store, act)

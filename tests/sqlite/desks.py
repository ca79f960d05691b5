"""A store whose worker has a scribe, on a running loop."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tenure.model.ids import JobId, new_job_ids
from tenure.model.job import NewJob
from tenure.store.contract import Claim, Enqueue, Exchange, Exchanged
from tenure.store.sqlite.dictation import Dictation
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import WORKER
from tests.waiting import until


def fill(store: SqliteStore, number: int) -> list[JobId]:
    ids = new_job_ids(number)
    store.do(Enqueue([NewJob(job_id, "work") for job_id in ids]))
    return ids


class Desk:
    """A store with a scribe, on a running loop."""

    def __init__(self, store: SqliteStore, dictation: Dictation) -> None:
        self.store = store
        self.dictation = dictation
        self.asked = 0
        ask = dictation._ask

        def counted(values: dict[str, Any]) -> Any:
            self.asked += 1
            return ask(values)

        dictation._ask = counted  # type: ignore[method-assign]

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self.dictation._process is not None
        return self.dictation._process

    @property
    def by_writer(self) -> int:
        """Statements that the writer of this process carried out."""
        return self.store.stats().statements

    async def exchange(self, request: Exchange) -> Exchanged:
        return await self.store.ado(request)


@asynccontextmanager
async def desk(store: SqliteStore) -> AsyncIterator[Desk]:
    """A scribe that stands ready, of a worker that has claimed before."""
    await store.ado(Exchange([], Claim(WORKER, ["default"], 1)))  # reads what there is to know about the queue
    subscription = await asyncio.to_thread(store.subscribe, ["default"], lambda: None, asyncio.get_running_loop())
    dictation = store._database.dictation
    assert dictation is not None
    dictation.start()
    await until(lambda: dictation._is_ready)
    try:
        yield Desk(store, dictation)
    finally:
        await asyncio.to_thread(subscription.close)


def at_desk(store: SqliteStore, act: Callable[[Desk], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with desk(store) as made:
            return await act(made)

    return asyncio.run(run())

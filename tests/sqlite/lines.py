"""A subscription on the running loop, as a worker has one, and what happened on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tenure.model.job import Job
from tenure.store.contract import Armed, Claim, Exchange, Subscription
from tenure.store.queries import GetJobs
from tenure.store.sqlite.armed import ArmedClaim
from tenure.store.sqlite.sockets import Postman
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import WORKER
from tests.waiting import until

LOOK = Exchange((), Claim(WORKER, ["default"], limit=10))


@dataclass
class Line:
    """A subscription on the running loop, and what happened on it."""

    store: SqliteStore
    path: Path
    told: list[str] = field(default_factory=list)
    subscription: Subscription | None = None

    def arm(self, request: Exchange = LOOK) -> Armed:
        assert self.subscription is not None
        armed = self.subscription.arm(request, lambda: self.told.append(f"leave {threading.get_ident()}"))
        assert armed is not None
        return armed

    def job(self, job_id: str) -> Job:
        (found,) = self.store.do(GetJobs([job_id]))  # type: ignore[list-item]
        assert found is not None
        return found

    def state(self, job_id: str) -> str:
        return self.job(job_id).state

    def send(self, message: bytes) -> None:
        """What another process would do."""
        postman = Postman(self.path)
        postman.send(message, own=None)
        postman.close()

    async def woken(self, times: int = 1) -> None:
        await until(lambda: self.told.count("wake") >= times)


def is_read_by_its_loop(store: SqliteStore) -> bool:
    """Whether datagrams are read on a loop, and not by the thread, which has to begin with."""
    listener = store._database.hub._listener
    return listener is not None and listener._reader is not None and listener._reader.is_reading


@asynccontextmanager
async def listening(store: SqliteStore, path: Path) -> AsyncIterator[Line]:
    line, here = Line(store, path), asyncio.get_running_loop()
    line.subscription = store.subscribe(["default"], lambda: line.told.append("wake"), here)
    await until(lambda: is_read_by_its_loop(store))
    try:
        yield line
    finally:
        line.subscription.close()


def pipes(path: Path) -> list[Path]:
    return sorted(Path(f"{path}-tenure").glob("*.offer*"))


def sockets(path: Path) -> list[str]:
    return [each.name for each in Path(f"{path}-tenure").glob("*.sock")]


def stands(armed: Armed) -> bool:
    assert isinstance(armed, ArmedClaim)
    return armed.nonce is not None


def left(line: Line) -> int:
    """How many times the worker was told that its claim has left."""
    return len([word for word in line.told if word.startswith("leave")])


def run(store: SqliteStore, path: Path, work: Callable[[Line], Any]) -> None:
    """Let a worker's subscription live as long as `work` takes."""

    async def act() -> None:
        async with listening(store, path) as line:
            await work(line)

    asyncio.run(act())

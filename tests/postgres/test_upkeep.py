"""A leader whose login may not do every duty: said, shown, and no reason to leave the others undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from tenure.model.ids import WorkerId
from tenure.observe.doctor import Check, examine
from tenure.store.postgres.store import PostgresStore
from tenure.store.queries import ListWorkers
from tenure.worker import leader
from tenure.worker.config import WorkerConfig
from tenure.worker.log import WorkerLog
from tenure.worker.worker import Worker
from tests.servers import USER
from tests.waiting import until
from tests.worker.bed import Bed, EventLog

pytestmark = pytest.mark.postgres


@pytest.mark.anyio
async def test_a_leader_that_may_not_prune_says_so_once_and_counts_all_the_same(
    login: Callable[[str], str], url: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(leader, "ROLL_UP_SECONDS", 0.05)
    log = EventLog()
    store, owner = PostgresStore(login("worker")), PostgresStore(url)
    config = WorkerConfig(heartbeat_seconds=0.1, handle_signals=False, grace_seconds=5.0)
    bed = Bed(store)
    bed.handle(_nothing)
    worker = Worker(store, bed.registry, config, emit=log)
    running = asyncio.ensure_future(worker.run())
    try:
        await until(lambda: "upkeep_denied" in log.names())
        await until(lambda: _status(owner) == "warn")
        await until(lambda: _counted(admin))
        sweeps = store.stats().requests
        await until(lambda: store.stats().requests > sweeps + 20)
        found = [check for check in await asyncio.to_thread(_examine, owner, url) if check.name == "upkeep"]
    finally:
        worker.stop()
        await running
        store.close()
        owner.close()

    [said] = [event for event in log.events if event.name == "upkeep_denied"]
    assert said.fields["duty"] == "prune"
    assert "may not prune" in str(said.message)
    assert "tenure_operator" in str(said.message)
    [check] = found
    assert check.status == "wrong"
    assert "may not prune" in check.says
    assert check.fix is not None
    assert "tenure_operator" in check.fix


@pytest.mark.anyio
async def test_a_worker_that_may_not_stand_for_election_says_so_once(
    login: Callable[[str], str], url: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was passed over in silence, as if the server were away."""
    monkeypatch.setattr(leader, "ELECTION_SECONDS", 0.02)
    admin.execute("DROP ROLE IF EXISTS bound_login")
    admin.execute("CREATE ROLE bound_login LOGIN")
    admin.execute("SELECT tenure.bind_login('bound_login', 'default')")
    store, log = PostgresStore(url.replace(f"{USER}@", "bound_login@")), EventLog()

    async def nothing() -> None: ...

    upkeep = leader.Leader(store, WorkerId("w1"), WorkerConfig(), [], WorkerLog("w1", log), nothing)
    standing = asyncio.ensure_future(upkeep._repeat(upkeep.stand_for_election, 0.02, at_once=True))
    try:
        await until(lambda: upkeep.denied)
        asked = store.stats().requests
        await until(lambda: store.stats().requests > asked + 2)
    finally:
        standing.cancel()
        store.close()
        admin.execute("SELECT tenure.unbind_login('bound_login', 'default')")
        admin.execute("DROP ROLE bound_login")

    [said] = log.events
    assert (said.name, said.fields["duty"]) == ("upkeep_denied", "stand_for_election")


async def _nothing() -> None: ...


def _status(store: PostgresStore) -> str | None:
    return next((seen.row.status for seen in store.do(ListWorkers())), None)


def _counted(admin: psycopg.Connection) -> bool:
    row = admin.execute("SELECT counted_until FROM tenure.metric_mark").fetchone()
    return row is not None and row[0] is not None


def _examine(store: PostgresStore, url: str) -> list[Check]:
    return list(examine(store, url))

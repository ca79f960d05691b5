"""What a heartbeat brings a worker beside the fate of its jobs, and a poll that is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from tenure.model.ids import WorkerId
from tenure.model.policy import QueuePolicy
from tenure.store.admin import AcquireLease, ReleaseLease, SetGate, SetQueues
from tenure.store.contract import Claim, Exchange, Heartbeat, WorkerRow
from tenure.store.postgres.store import PostgresStore
from tenure.store.queries import ListWorkers

pytestmark = pytest.mark.postgres

ROW = WorkerRow(WorkerId("w1"), "host", 1, ("default", "mail"), ("work",), 1, "1")


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    made = PostgresStore(url)
    yield made
    made.close()


def test_a_heartbeat_tells_when_a_policy_has_changed(store: PostgresStore, admin: psycopg.Connection) -> None:
    beat = Heartbeat([], worker=ROW)
    first = store.do(beat).queues
    assert first is not None
    assert store.do(beat).queues == first, "nothing has changed"

    store.do(SetQueues({"mail": QueuePolicy()}, "me"))
    made = store.do(beat).queues
    store.do(SetQueues({"mail": QueuePolicy(lease_seconds=5.0)}, "me"))
    changed = store.do(beat).queues
    store.do(SetQueues({"elsewhere": QueuePolicy()}, "me"))
    assert store.do(beat).queues == changed, "not a queue of this worker"
    admin.execute("DELETE FROM tenure.queue WHERE name = 'mail'")
    dropped = store.do(beat).queues

    assert len({first, made, changed}) == 3
    assert dropped == first


def test_a_heartbeat_tells_for_how_long_somebody_else_leads(store: PostgresStore) -> None:
    beat = Heartbeat([], worker=ROW)
    assert store.do(beat).led_seconds is None, "nobody leads"

    lease = store.do(AcquireLease("leader", "w2", 30.0))
    led = store.do(beat).led_seconds
    assert led is not None
    assert 25.0 < led <= 30.0
    own = store.do(Heartbeat([], worker=replace(ROW, id=WorkerId("w2"))))
    assert own.led_seconds is None, "this one leads itself"

    store.do(ReleaseLease("leader", "w2", lease.term))
    assert store.do(beat).led_seconds is None


POLL = Exchange([], Claim(ROW.id, ["default"], 1, beats=True))
LONG_POLL = Exchange([], Claim(ROW.id, ["default", "mail"], 1, beats=True))


@pytest.mark.parametrize("poll", [POLL, LONG_POLL], ids=["one queue", "two queues"])
def test_a_poll_that_finds_nothing_is_a_heartbeat_too(store: PostgresStore, poll: Exchange) -> None:
    store.do(SetQueues({"mail": QueuePolicy()}, "me"))
    lease = store.do(AcquireLease("leader", "w2", 30.0))
    told = store.do(Heartbeat([], worker=ROW))

    beat = store.do(poll).beat

    assert beat is not None
    assert beat.queues == told.queues
    assert beat.led_seconds is not None
    assert 25.0 < beat.led_seconds <= 30.0
    store.do(ReleaseLease("leader", "w2", lease.term))
    store.do(SetQueues({"mail": QueuePolicy(lease_seconds=5.0)}, "me"))
    changed = store.do(poll).beat
    assert changed is not None
    assert changed.led_seconds is None
    assert changed.queues != told.queues
    assert [worker.ticks for worker in store.do(ListWorkers())] == [3]


@pytest.mark.parametrize("poll", [POLL, LONG_POLL], ids=["one queue", "two queues"])
def test_a_poll_is_no_heartbeat_of_a_worker_that_is_not_known(store: PostgresStore, poll: Exchange) -> None:
    store.do(SetQueues({"mail": QueuePolicy()}, "me"))

    assert store.do(poll).beat is None
    assert store.do(ListWorkers()) == []


@pytest.mark.parametrize("gate", ["heartbeat", "notify"])
def test_a_poll_is_no_heartbeat_while_a_gate_is_closed(store: PostgresStore, gate: str) -> None:
    store.do(Heartbeat([], worker=ROW))
    store.do(SetGate(gate, is_open=False, actor="me"))

    assert store.do(POLL).beat is None
    assert [worker.ticks for worker in store.do(ListWorkers())] == [1]

"""What a heartbeat brings a worker beside the fate of its jobs, so that it need not ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from tenure.model.ids import WorkerId
from tenure.model.policy import QueuePolicy
from tenure.store.base import Heartbeat, WorkerRow
from tenure.store.operating import AcquireLease, ReleaseLease, SetQueues
from tenure.store.postgres.store import PostgresStore

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

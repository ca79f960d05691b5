"""Connections of a process: quick and clear errors, a bound on every wait, and none shared across a fork."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterator

import psycopg
import pytest

from tenure.errors import StoreBusy, StoreClosed, StoreUnavailable
from tenure.model.ids import WorkerId
from tenure.store.contract import Claim, Enqueue, Heartbeat, Hold
from tenure.store.postgres.store import PostgresStore
from tenure.store.queries import GetJobs, ListAudit, ListQueues
from tests.conformance.acts import new_job
from tests.postgres.test_listen import Wire
from tests.servers import PostgresServer, wheel_bin_path
from tests.waiting import wait_until

pytestmark = pytest.mark.postgres

SESSIONS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tenure'"


@pytest.fixture
def wire(url: str) -> Iterator[Wire]:
    made = Wire(url)
    yield made
    made.close()


def sessions(admin: psycopg.Connection) -> set[int]:
    return {pid for (pid,) in admin.execute(SESSIONS.encode()).fetchall()}


def test_a_frozen_server_ends_a_request_after_the_bound_and_the_next_call_connects_again(wire: Wire) -> None:
    """The connection stays open and no byte arrives, as from a server that was stopped by SIGSTOP."""
    store = PostgresStore(wire.url, pool_size=1, reply_seconds=0.5)
    try:
        store.do(ListQueues())
        wire.silent.set()
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable):
            store.do(ListQueues())
        assert 0.4 < time.monotonic() - begun < 10

        wire.silent.clear()
        assert [row.name for row in store.do(ListQueues())] == ["default"]
    finally:
        store.close()


def test_a_server_that_goes_and_comes_back_is_unavailable_in_between() -> None:
    server = PostgresServer(wheel_bin_path(18), durable=False)
    server.start()
    store = PostgresStore(server.url(), pool_size=2, wait_seconds=20)
    try:
        assert store.schema_version() == 0
        store.migrate()
        store.do(ListQueues())
        server.stop()
        for _ in range(3):
            begun = time.monotonic()
            with pytest.raises(StoreUnavailable):
                store.do(ListQueues())
            assert time.monotonic() - begun < 10  # half of what a crowded pool would take

        server.start()
        assert [row.name for row in store.do(ListQueues())] == ["default"]
    finally:
        store.close()
        server.close()


def test_a_pool_that_is_all_taken_is_busy_and_serves_again(url: str, admin: psycopg.Connection) -> None:
    store = PostgresStore(url, pool_size=1, wait_seconds=3.0)
    store.do(ListQueues())
    try:
        with admin.transaction():
            admin.execute("LOCK TABLE tenure.queue IN ACCESS EXCLUSIVE MODE")
            waiting = threading.Thread(target=store.do, args=[ListQueues()])
            waiting.start()
            blocked = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'tenure' AND wait_event_type = 'Lock'"
            with psycopg.connect(url, autocommit=True) as watcher:
                wait_until(lambda: watcher.execute(blocked.encode()).fetchone() is not None)
            with pytest.raises(StoreBusy, match="tenure_pool"):
                store.do(ListQueues())
        waiting.join()
        store.do(ListQueues())
    finally:
        store.close()

    with pytest.raises(StoreClosed):
        store.do(ListQueues())


def test_heartbeats_go_out_while_every_other_connection_is_taken(url: str, admin: psycopg.Connection) -> None:
    store = PostgresStore(url, pool_size=1, wait_seconds=3.0)
    try:
        store.do(Enqueue([new_job()]))
        [grant] = store.do(Claim(WorkerId("w1"), ["default"], lease_seconds=60))
        with admin.transaction():
            admin.execute("LOCK TABLE tenure.audit IN ACCESS EXCLUSIVE MODE")
            waiting = threading.Thread(target=store.do, args=[ListAudit()])
            waiting.start()
            blocked = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'tenure' AND wait_event_type = 'Lock'"
            with psycopg.connect(url, autocommit=True) as watcher:
                wait_until(lambda: watcher.execute(blocked.encode()).fetchone() is not None)
            beat = store.do(Heartbeat([Hold(grant.id, grant.token)], 600))
        waiting.join()
        [job] = store.do(GetJobs([grant.id]))
    finally:
        store.close()

    assert beat.lost == frozenset()
    assert job is not None
    assert job.lease_until is not None
    assert job.lease_until > grant.lease_until


def test_a_child_after_a_fork_has_connections_of_its_own(url: str, admin: psycopg.Connection) -> None:
    store = PostgresStore(url, pool_size=2)
    try:
        store.do(ListQueues())
        before = sessions(admin)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that this process has threads is the point
            child = os.fork()
        if child == 0:
            try:
                store.do(Enqueue([new_job(kind="child")]))
                with psycopg.connect(url, autocommit=True) as own:
                    is_own = bool(sessions(own) - before)
                store.close()
                os._exit(0 if is_own else 2)
            finally:
                os._exit(1)

        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        store.do(Enqueue([new_job(kind="parent")]))
        assert sessions(admin) == before  # the child has closed none of them, and its own are gone
    finally:
        store.close()
    kinds = admin.execute("SELECT kind::text FROM tenure.job ORDER BY 1").fetchall()
    assert kinds == [("child",), ("parent",)]

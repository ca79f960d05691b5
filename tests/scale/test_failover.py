"""A primary dies under load and its synchronous standby takes over: what was acknowledged is there, and workers and
producers come back by the URL that names both, without a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

import tenure
from tenure.errors import ReadOnly, StoreUnavailable
from tenure.model.ids import new_job_id
from tests.scale.conftest import StartWorker
from tests.servers import PostgresServer, wheel_bin_path
from tests.waiting import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

PRODUCERS = 4
LONG = 120.0


@dataclass(frozen=True, slots=True)
class Pair:
    """A primary and its synchronous standby, with one database."""

    primary: PostgresServer
    standby: PostgresServer
    url: str


@pytest.fixture
def pair() -> Iterator[Pair]:
    primary = PostgresServer(wheel_bin_path(18), durable=False)
    standby = None
    try:
        primary.start()
        with psycopg.connect(primary.url(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE jobs")
        with tenure.App(primary.url("jobs"), migrate="always") as app:
            app.migrate()
        standby = primary.standby()
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        yield Pair(primary, standby, f"postgresql://tenure_test@{hosts}/jobs?target_session_attrs=read-write")
    finally:
        if standby is not None:
            standby.close()
        primary.close()


class Producers:
    """Threads that enqueue one job after the other. A call that fails is repeated with the same id until it is
    acknowledged, as the error asks for."""

    def __init__(self, app: tenure.App) -> None:
        self._app = app
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.acknowledged: list[str] = []
        self.failures = 0
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(PRODUCERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(LONG)
            assert not thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            key = new_job_id()
            while True:
                try:
                    job = self._app.enqueue("press", 1, key=key)
                    break
                except StoreUnavailable:
                    with self._lock:
                        self.failures += 1
                    if self._stop.wait(0.05):
                        return
            with self._lock:
                self.acknowledged.append(job.id)


def test_every_acknowledged_job_survives_and_workers_come_back(pair: Pair, start_worker: StartWorker) -> None:
    workers = [start_worker(pair.url, "--concurrency", "4") for _ in range(2)]
    with tenure.App(pair.url) as app:
        producers = Producers(app)
        producers.start()
        try:
            wait_until(lambda: len(producers.acknowledged) > 200 and _succeeded(app) > 50, LONG)
            wait_until(lambda: len(app.workers.all()) == 2, LONG)  # one that cannot start exits, and rightly

            pair.primary.stop("kill")
            wait_until(lambda: producers.failures > 0, LONG)
            before = len(producers.acknowledged)
            pair.standby.promote()

            wait_until(lambda: len(producers.acknowledged) > before + 200, LONG)
        finally:
            producers.stop()

        acknowledged = producers.acknowledged
        found = [job for job in app.get_many(acknowledged) if job is not None]
        assert len(found) == len(acknowledged) == len(set(acknowledged)), "an acknowledged job is lost"
        wait_until(lambda: all(job and job.state == "succeeded" for job in app.get_many(acknowledged)), LONG)

        assert [worker.poll() for worker in workers] == [None, None]
        # What was in flight when the primary died may be there too, once: it was repeated with its key.
        assert sum(one.jobs for one in app.queues.counts()) <= len(acknowledged) + PRODUCERS
        assert {job.result for job in app.get_many(acknowledged) if job} == {2}


def _succeeded(app: tenure.App) -> int:
    return sum(one.jobs for one in app.queues.counts(state="succeeded"))


def test_a_connection_to_a_server_that_became_read_only_is_not_used_again(pair: Pair) -> None:
    """A demoted primary may stay up and keep its connections. They must not stay in the pool."""
    with tenure.App(pair.url) as app:
        first = app.enqueue("press", 1)
        with psycopg.connect(pair.primary.url(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            connection.execute("SELECT pg_reload_conf()")
        pair.standby.promote()
        with psycopg.connect(pair.primary.url("jobs"), autocommit=True) as connection:
            wait_until(lambda: connection.execute("SHOW default_transaction_read_only").fetchone() == ("on",))

        def is_refused() -> bool:
            try:
                app.enqueue("press", 2, key="second")
            except ReadOnly:
                return True
            return False

        # The session takes the new setting over at its own pace; then the next call connects anew.
        wait_until(lambda: not is_refused(), LONG)
        second = app.enqueue("press", 2, key="second")
        third = app.enqueue("press", 3)
        with tenure.App(pair.standby.url("jobs")) as other:
            assert other.get(first.id).kind == "press"
            assert other.get(third.id).payload == 3
            assert other.jobs(key="second").items[0].id == second.id

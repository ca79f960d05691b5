"""DBOS on PostgreSQL: workflows on a queue polled every 100 ms, enqueued by its client."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.harness import Enqueue, Order, PostgresSide, main, timed
from benchmarks.peers.tally import Tally
from benchmarks.protocol import payload

QUEUE = "bench"


class DbosSide(PostgresSide):
    """DBOS with its own executor, which keeps finished workflows."""

    name = "dbos"
    distribution = "dbos"
    settings = "queue polled every 0.1 s, DBOSClient as producer"
    keeps_rows = True
    pause = (0.005, 0.105)

    def prepare(self, url: str) -> None:
        """Launch once: that migrates the system database and stores the queue."""
        dbos = _launched(url, None)
        dbos.destroy(destroy_registry=True)

    def enqueue_each(self, url: str, jobs: int) -> float:
        """One enqueue each."""
        client = _client(url)
        return timed(lambda: [_enqueue(client, i) for i in range(jobs)])

    @contextmanager
    def enqueuer(self, url: str) -> Iterator[Enqueue]:
        """One enqueue each."""
        client = _client(url)

        def enqueue(i: int) -> tuple[int, int]:
            called = time.monotonic_ns()
            _enqueue(client, i)
            return called, time.monotonic_ns()

        yield enqueue

    def worker(self, order: Order, tally: Tally) -> None:
        """Launch its executor once all workers are there."""
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        tally.ready_and_wait()
        _launched(order.url, tally, executor=f"bench-{order.slot}")
        stop.wait()


def _launched(url: str, tally: Tally | None, executor: str = "bench") -> Any:
    from dbos import DBOS

    config: Any = {
        "name": "bench",
        "system_database_url": url,
        "application_version": "bench",
        "executor_id": executor,
        "log_level": "ERROR",
    }
    DBOS(config=config)

    @DBOS.workflow(name="noop")  # type: ignore[untyped-decorator]
    def noop(data: dict[str, Any]) -> None:
        assert tally is not None
        tally.started(data["i"])

    DBOS.launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=0.1)
    return DBOS


def _client(url: str) -> Any:
    from dbos import DBOSClient

    return DBOSClient(system_database_url=url)


def _enqueue(client: Any, i: int) -> object:
    options = {"queue_name": QUEUE, "workflow_name": "noop", "app_version": "bench", "application_name": "bench"}
    return client.enqueue(options, payload(i))


if __name__ == "__main__":
    main(DbosSide())

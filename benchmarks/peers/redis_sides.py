"""The peers on Redis: dramatiq, celery and rq, behind the same hooks. Redis syncs its file once a second."""

from __future__ import annotations

import logging
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers import noop
from benchmarks.peers.harness import Enqueue, Order, Side, main, timed
from benchmarks.peers.tally import Tally
from benchmarks.protocol import payload


class RedisSide(Side):
    """A side whose store is one Redis database, emptied before each measurement."""

    engines = ("redis",)

    def prepare(self, url: str) -> None:
        """Empty the database."""
        _redis(url).flushall()

    @abstractmethod
    def door(self, url: str) -> Callable[[int], object]:
        """Give the call that enqueues job `i`."""

    def enqueue_each(self, url: str, jobs: int) -> float:
        """One call each; one more beforehand would leave a job behind, so the connecting is in the first call."""
        send = self.door(url)
        return timed(lambda: [send(i) for i in range(jobs)])

    @contextmanager
    def enqueuer(self, url: str) -> Iterator[Enqueue]:
        """One call each."""
        send = self.door(url)

        def enqueue(i: int) -> tuple[int, int]:
            called = time.monotonic_ns()
            send(i)
            return called, time.monotonic_ns()

        yield enqueue

    def worker_command(self, order: Order) -> list[str]:
        """Name the library as well, since three share this module."""
        command = super().worker_command(order)
        return [*command[:3], self.name, *command[3:]]


class DramatiqSide(RedisSide):
    """dramatiq: one process, eight threads."""

    name = "dramatiq"
    distribution = "dramatiq"
    settings = "RedisBroker, 1 process × 8 threads, appendfsync everysec"
    workloads = ("W1", "W3a", "W3b", "W3t", "W4")

    def door(self, url: str) -> Callable[[int], object]:
        """Send a message."""
        actor = _dramatiq(url, None)[1]
        return lambda i: actor.send(**payload(i))

    def worker(self, order: Order, tally: Tally) -> None:
        """Run its Worker as its command line would."""
        import dramatiq

        logging.disable(logging.WARNING)
        tally = Tally(tally.path, tally.jobs, slot=order.slot, threads=True)
        broker, _ = _dramatiq(order.url, tally)
        tally.ready_and_wait()
        dramatiq.Worker(broker, worker_threads=8).start()
        while True:
            time.sleep(3600)

    def unfinished(self, url: str) -> int:
        """A message stays in the hash until it is acknowledged."""
        return int(_redis(url).hlen("dramatiq:default.msgs"))


class CelerySide(RedisSide):
    """celery: solo pool, late acknowledgement, prefetch 64."""

    name = "celery"
    distribution = "celery"
    settings = "solo pool, acks_late, prefetch 64, results off, appendfsync everysec"

    def door(self, url: str) -> Callable[[int], object]:
        """Send a task."""
        task = _celery(url, None)[1]
        return lambda i: task.delay(**payload(i))

    def worker(self, order: Order, tally: Tally) -> None:
        """Run its worker in this process."""
        app, _ = _celery(order.url, tally)
        tally.ready_and_wait()
        app.Worker(
            pool="solo",
            loglevel="ERROR",
            hostname=f"bench-{order.slot}@%h",
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            quiet=True,
        ).start()

    def unfinished(self, url: str) -> int:
        """Waiting in the list or delivered and not yet acknowledged."""
        client = _redis(url)
        return int(client.llen("celery")) + int(client.hlen("unacked"))


class RqSide(RedisSide):
    """rq: SimpleWorker, which runs jobs in its own process."""

    name = "rq"
    distribution = "rq"
    settings = "SimpleWorker, result_ttl 0, enqueue_many by 1,000, appendfsync everysec"
    workloads = ("W1", "W2", "W3a", "W3b", "W4")

    def door(self, url: str) -> Callable[[int], object]:
        """Enqueue by the handler's import path."""
        queue = _rq(url)
        return lambda i: queue.enqueue("benchmarks.peers.noop.noop", kwargs=payload(i), result_ttl=0)

    def enqueue_bulk(self, url: str, jobs: int, *, spread: bool = False) -> float:
        """enqueue_many by 1,000."""
        self.only_one_priority(spread=spread)
        queue = _rq(url)

        def bulk() -> None:
            for begin in range(0, jobs, 1_000):
                numbers = range(begin, min(jobs, begin + 1_000))
                path = "benchmarks.peers.noop.noop"
                queue.enqueue_many([queue.prepare_data(path, kwargs=payload(i), result_ttl=0) for i in numbers])

        return timed(bulk)

    def worker(self, order: Order, tally: Tally) -> None:
        """Run its SimpleWorker."""
        from rq import SimpleWorker

        noop.tally = tally
        worker: Any = SimpleWorker([_rq(order.url)])
        tally.ready_and_wait()
        worker.work(logging_level="ERROR")

    def unfinished(self, url: str) -> int:
        """Waiting in the list or begun."""
        queue = _rq(url)
        return int(queue.count) + int(queue.started_job_registry.get_job_count(cleanup=False))


SIDES: dict[str, type[RedisSide]] = {"dramatiq": DramatiqSide, "celery": CelerySide, "rq": RqSide}
_clients: dict[str, Any] = {}


def _redis(url: str) -> Any:
    import redis

    return _clients.setdefault(url, redis.Redis.from_url(url))


def _dramatiq(url: str, tally: Tally | None) -> tuple[Any, Any]:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=url)
    dramatiq.set_broker(broker)

    @dramatiq.actor(actor_name="noop", broker=broker)  # type: ignore[untyped-decorator]
    def handler(i: int, pad: str) -> None:  # noqa: ARG001 - dramatiq hands over the whole payload
        assert tally is not None
        tally.started(i)

    return broker, handler


def _celery(url: str, tally: Tally | None) -> tuple[Any, Any]:
    from celery import Celery

    app = Celery("bench", broker=url)
    app.conf.update(
        task_acks_late=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=64,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
    )

    @app.task(name="noop")  # type: ignore[untyped-decorator]
    def handler(i: int, pad: str) -> None:  # noqa: ARG001 - celery hands over the whole payload
        assert tally is not None
        tally.started(i)

    return app, handler


def _rq(url: str) -> Any:
    from rq import Queue

    return Queue("bench", connection=_redis(url))


if __name__ == "__main__":
    chosen = sys.argv.pop(1)
    main(SIDES[chosen]())

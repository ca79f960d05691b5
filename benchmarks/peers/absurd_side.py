"""absurd on PostgreSQL: concurrency and batch of 50, 10 ms poll. `absurdctl` brings the schema."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.harness import Enqueue, Order, PostgresSide, main, timed
from benchmarks.peers.tally import Tally
from benchmarks.protocol import payload

QUEUE = "bench"


class AbsurdSide(PostgresSide):
    """absurd with its own asynchronous worker, which keeps finished tasks."""

    name = "absurd"
    distribution = "absurd-sdk"
    settings = "concurrency 50, batch 50, poll 10 ms, sync producer"
    keeps_rows = True

    def prepare(self, url: str) -> None:
        """Apply its schema and create the queue."""
        command = [str(Path(sys.executable).with_name("absurdctl")), "init", f"--database={url}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"absurdctl init failed: {(done.stderr or done.stdout).strip()[-300:]}")
        _client(url).create_queue(QUEUE)

    def enqueue_each(self, url: str, jobs: int) -> float:
        """One spawn each."""
        client = _client(url)
        return timed(lambda: [client.spawn("noop", payload(i), queue=QUEUE) for i in range(jobs)])

    @contextmanager
    def enqueuer(self, url: str) -> Iterator[Enqueue]:
        """One spawn each."""
        client = _client(url)

        def enqueue(i: int) -> tuple[int, int]:
            called = time.monotonic_ns()
            client.spawn("noop", payload(i), queue=QUEUE)
            return called, time.monotonic_ns()

        yield enqueue

    def worker(self, order: Order, tally: Tally) -> None:
        """Run its asynchronous worker."""
        asyncio.run(_work(order.url, tally))


def _client(url: str) -> Any:
    from absurd_sdk import Absurd

    return Absurd(url, queue_name=QUEUE)


async def _work(url: str, tally: Tally) -> None:
    from absurd_sdk import AsyncAbsurd

    app = AsyncAbsurd(url, queue_name=QUEUE)

    @app.register_task(name="noop", queue=QUEUE)  # type: ignore[untyped-decorator]
    async def noop(params: dict[str, Any], _ctx: object) -> None:
        tally.started(params["i"])

    tally.ready_and_wait()
    await app.start_worker(concurrency=50, batch_size=50, poll_interval=0.01)


if __name__ == "__main__":
    main(AbsurdSide())

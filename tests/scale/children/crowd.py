"""`python crowd.py N`: N workers in one process, each with connections of its own, until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys

import tenure


def make_app() -> tenure.App:
    """One app per worker: each has its own pool."""
    app = tenure.App(actor="crowd")

    @app.job
    async def press(number: int) -> int:
        return number + 1

    return app


async def main(count: int) -> None:
    """Run them all, and stop them all."""
    apps = [make_app() for _ in range(count)]
    workers = [app.worker(concurrency=2) for app in apps]

    def stop() -> None:
        for worker in workers:
            worker.stop()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    await asyncio.gather(*(worker.run() for worker in workers))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))

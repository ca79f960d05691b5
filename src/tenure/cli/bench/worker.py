"""The worker that `tenure bench` starts: its own process, told what to do by its arguments, ended by closing its stdin.

Run as `python -m tenure.cli.bench.worker QUEUE KIND COUNT`, with the database in TENURE_URL: a URL may hold a password,
and arguments are seen by everybody. Writes `ready`, then with COUNT 0 a line `number moment` for each job, else
`first moment` and, when the COUNTth handler starts, `last moment`. Moments are CLOCK_MONOTONIC in nanoseconds, which
all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

from tenure.app import App


def main(queue: str, kind: str, count: int) -> None:
    """Work until stdin ends."""
    app = App(actor="tenure bench", migrate="never")
    app.job(kind=kind, queue=queue)(_each if count == 0 else _counting(count))
    worker = app.worker([queue], maintain=False, handle_signals=False)

    def stop_at_the_end() -> None:
        sys.stdin.read()
        worker.stop()

    threading.Thread(target=stop_at_the_end, daemon=True).start()
    try:
        asyncio.run(_run(worker))
    finally:
        app.close()


async def _run(worker: Any) -> None:
    working = asyncio.create_task(worker.run())
    ready = asyncio.create_task(worker.ready.wait())
    await asyncio.wait({working, ready}, return_when=asyncio.FIRST_COMPLETED)
    _say("ready")
    ready.cancel()
    await working


async def _each(payload: dict[str, Any]) -> None:
    _say(f"{payload['i']} {time.monotonic_ns()}")


def _counting(count: int) -> Any:
    started = 0

    async def handler(payload: dict[str, Any]) -> None:  # noqa: ARG001 - the payload is read, as a handler's would be
        nonlocal started
        started += 1
        if started == 1:
            _say(f"first {time.monotonic_ns()}")
        if started == count:
            _say(f"last {time.monotonic_ns()}")

    return handler


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

"""Idle workers for W8 and the footprint: `python -m benchmarks.tenure_idle URL FILE NUMBER`, in one process.

Each is a worker of its own: its own id, lease thread, connections and subscription. Handlers append `i moment` to FILE.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any


def main(url: str, path: str, number: int) -> None:
    """Run until SIGTERM."""
    import tenure

    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    workers = []
    apps = []
    for _ in range(number):
        app = tenure.App(url)

        async def noop(job: dict[str, Any]) -> None:
            os.write(file, f"{job['i']} {time.monotonic_ns()}\n".encode())

        app.job(kind="noop", queue="default")(noop)
        apps.append(app)
        workers.append(app.worker(["default"]))
    threads = [threading.Thread(target=worker.run_sync) for worker in workers]

    def stop(*_: object) -> None:
        for worker in workers:
            worker.stop()

    signal.signal(signal.SIGTERM, stop)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for app in apps:
        app.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

"""Kill a worker at the n-th file system call of its job, for every n, let another worker recover, and print both.

A script of its own, so that it is single-threaded and may fork: each death is a real SIGKILL of a real worker.
Arguments: folder, operation.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).parents[3]))  # the project's root, for tests.effects.points

import tenure
import tenure.effects.payloads
import tenure.store.sqlite.store
import tenure.worker.worker  # all of them here, so that no child pays for it
from tenure.effects import files
from tenure.testing import drain
from tests.effects.points import watch

OLD = "old " * 1000
NEW = "new!" * 1000


def payload_of(operation: str, path: str) -> tuple[str, dict[str, object]]:
    if operation == "delete":
        return "delete_file", {"path": path, "requireExists": True}
    return "create_file", {"path": path, "content": NEW, "overwrite": operation == "replace"}


class LaterClock:
    """Past the lease of whoever died."""

    def now_us(self) -> int:
        return time.time_ns() // 1000 + 300_000_000


def app_at(folder: Path, clock: LaterClock | None = None) -> tenure.App:
    app = tenure.App(f"sqlite:///{folder / 'jobs.db'}", clock=clock)
    return app.use(files(root=folder / "root", max_attempts=10))


def in_a_fork(act: Callable[[], object]) -> object:
    """What `act` answers in a child; None if the child was killed. The parent opens no database, so it may fork."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, json.dumps(act()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    status = os.waitpid(pid, 0)[1]
    if not os.WIFSIGNALED(status) and status != 0:
        sys.exit(f"a child failed by itself: status {status}")
    return json.loads(said) if said else None


def enqueue(folder: Path, operation: str, path: str) -> object:
    with app_at(folder) as app:
        return app.enqueue(*payload_of(operation, path)).id


def die_at_work(folder: Path, point: int) -> object:
    left = point

    def hook(_: str) -> None:
        nonlocal left
        if threading.current_thread().name.startswith("tenure-handler"):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    with watch(hook), app_at(folder) as app:
        drain(app, raise_errors=False)
    return "lived"


def recover(folder: Path, job_id: str, path: str) -> object:
    with app_at(folder, LaterClock()) as app:
        before = look(app, folder, job_id, path)
        drain(app, raise_errors=False)
        return [before, look(app, folder, job_id, path)]


def look(app: tenure.App, folder: Path, job_id: str, path: str) -> dict[str, object]:
    job, target = app.get(job_id), folder / "root" / path
    seen = {OLD: "old", NEW: "new"}.get(target.read_text(), "torn") if target.exists() else "absent"
    tickets = len(list((folder / "root").rglob(".tenure-*")))
    return {"job": job.state, "result": job.result, "target": seen, "tickets": tickets}


def main(folder: Path, operation: str) -> None:
    (folder / "root").mkdir()
    point, died = 0, True
    while died:
        path = f"{point}/er/target.txt"
        if operation != "create":
            (folder / "root" / path).parent.mkdir(parents=True)
            (folder / "root" / path).write_text(OLD)
        job_id = str(in_a_fork(lambda path=path: enqueue(folder, operation, path)))  # type: ignore[misc]
        died = in_a_fork(lambda point=point: die_at_work(folder, point)) is None  # type: ignore[misc]
        seen, then = cast(list[object], in_a_fork(lambda: recover(folder, job_id, path)))  # noqa: B023
        print(json.dumps({"point": point, "died": died, "seen": seen, "then": then}), flush=True)
        point += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

"""Kill an outbox's update, or the worker that carries it out, at many points, recover, and print what was found.

A script of its own, so that it is single-threaded and may fork; deaths are real. Arguments: folder, update|work, step.
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
from types import FrameType
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[3]))  # the project's root, for tests.effects.points

import tenure
import tenure.effects.payloads
import tenure.store.sqlite.store
import tenure.worker.worker  # all of them here, so that no child pays for it
from tenure.effects.outbox import Change, Outbox
from tenure.testing import drain
from tests.effects.points import watch


class LaterClock:
    """Past the lease of whoever died."""

    def now_us(self) -> int:
        return time.time_ns() // 1000 + 300_000_000


def open_at(folder: Path, clock: LaterClock | None = None) -> tuple[tenure.App, Outbox]:
    outbox = Outbox(folder / "root")
    app = tenure.App(f"sqlite:///{folder / 'jobs.db'}", clock=clock).use(outbox)

    @app.job(max_attempts=10)
    def mail(payload: int) -> int:
        with (folder / "mails").open("a") as file:
            file.write(f"{payload}\n")
        return payload

    return app, outbox


def update(outbox: Outbox, path: str, number: int) -> None:
    def change(data: Any, box: Change) -> Any:
        box.enqueue("mail", number)
        return {**(data or {}), "count": (data or {}).get("count", 0) + 1}

    outbox.update(path, change)


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


def die_updating(folder: Path, path: str, point: int) -> object:
    """Die at the so-many-th call of any function, while the change is made and committed."""
    app, outbox = open_at(folder)
    left = point

    def profile(_: FrameType, event: str, __: object) -> None:
        nonlocal left
        if event in {"call", "c_call"}:
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    with app:
        app.queues.counts()  # the database is open before the counting begins
        sys.setprofile(profile)
        update(outbox, path, point)
        sys.setprofile(None)
    return point - left


def die_working(folder: Path, path: str, point: int) -> object:
    app, outbox = open_at(folder)
    left = point

    def hook(_: str) -> None:
        nonlocal left
        if threading.current_thread().name.startswith("tenure-handler"):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    with app:
        update(outbox, path, point)
        with watch(hook):
            drain(app, raise_errors=False)
    return point - left


def recover(folder: Path, path: str) -> object:
    app, outbox = open_at(folder, LaterClock())
    with app:
        promised = outbox.read(path)
        drain(app, raise_errors=False)
        written = outbox.read(path)
        states = {count.state: count.jobs for count in app.queues.counts()}
    file = folder / "root" / path
    return [promised, written, json.loads(file.read_text()) if file.exists() else None, states]


def main(folder: Path, sort: str, step: int) -> None:
    (folder / "root").mkdir()
    act = die_updating if sort == "update" else die_working
    point: int = 0
    lived: object = None
    while lived is None:
        path = f"{point}.json"
        lived = in_a_fork(lambda point=point, path=path: act(folder, path, point))  # type: ignore[misc]
        promised, written, file, states = cast(
            list[Any],
            in_a_fork(lambda path=path: recover(folder, path)),  # type: ignore[misc]
        )
        mails = (folder / "mails").read_text().split() if (folder / "mails").exists() else []
        told = {"promised": promised, "written": written, "file": file, "states": states}
        print(json.dumps({"point": point, "lived": lived, "mails": mails.count(str(point)), **told}), flush=True)
        point += step


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))

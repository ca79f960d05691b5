"""What the tests of this folder share."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import NewJob
from tenure.store.contract import Enqueue
from tenure.store.sqlite.store import SqliteStore

T = TypeVar("T")

WORKER = WorkerId("w1")
CHILDREN = Path(__file__).parent / "children"


def job(key: str | None = None, payload: str = "{}", queue: str = "default") -> NewJob:
    """A job to enqueue."""
    return NewJob(new_job_id(), "work", payload, queue, key=key)


def put(store: SqliteStore, key: str | None = None, payload: str = "{}") -> JobId:
    """Enqueue one job; its id."""
    return store.do(Enqueue([job(key, payload)]))[0].id


@contextmanager
def small_disk(point: Path, megabytes: int) -> Iterator[Path]:
    """A filesystem of its own at a folder that is made for it."""
    point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(point)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)  # a process of a failed test may still use it


def start_child(name: str, *arguments: str, **settings: object) -> subprocess.Popen[str]:
    """A Python process of our own that runs children/NAME.py."""
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [sys.executable, str(CHILDREN / f"{name}.py"), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **settings,
    )


def in_fork(act: Callable[[], T]) -> T:
    """What `act` answers in a forked child; its error is raised here."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(out)
            try:
                answer: object = (True, act())
            except BaseException as exc:  # noqa: BLE001 - handed over to the parent
                answer = (False, exc)
            os.write(into, pickle.dumps(answer))
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as reader:
        is_good, value = pickle.loads(reader.read())
    os.waitpid(pid, 0)
    if not is_good:
        raise value
    answered: T = value
    return answered

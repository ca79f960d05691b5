"""The tests are tested, second half: bugs planted in workers, in writing files, in ending processes and in syncing.

Each is staged, so that it shows itself whatever the machine is busy with, and each has its counterpart: the same run
without the bug, in which nothing is found.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tenure.effects.atomic_file import Tag, write_file
from tenure.model.policy import QueuePolicy
from tenure.sandbox.safe_path import Root
from tenure.store.admin import SetGate
from tenure.store.contract import Reap
from tenure.worker import run
from tenure.worker.leases import Leases
from tenure.worker.process_tree import kill_tree
from tenure.worker.worker import Worker, WorkerConfig
from tests.conformance.engines import open_sqlite, scratch_folder
from tests.effects.points import watch
from tests.fault.checker import check, check_calm, check_gone, check_reads, check_synced, snapshot
from tests.fault.journal import Record
from tests.fault.scale import PATIENCE, TIMEOUT
from tests.sqlite.test_faults import can_inject
from tests.waiting import until
from tests.worker.bed import Bed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT), pytest.mark.anyio]

CHILDREN = Path(__file__).parent / "children"
LEASE = 4.0


@pytest.fixture
def bed() -> Iterator[Bed]:
    with scratch_folder() as folder:
        store = open_sqlite(folder / "jobs.db")
        yield Bed(store)
        store.close()


# --- heartbeats -------------------------------------------------------------------------------------------------------


class BeatsSlowerThanTheLease(WorkerConfig):
    """A worker that takes any period for its heartbeats."""

    def check_heartbeat(self, lease_seconds: float) -> None:
        pass


class BeatsOnTheLoop(Leases):
    """A worker whose heartbeats come from the event loop, where handlers run too."""

    def start(self) -> None:
        self._task = self._loop.create_task(self._beat_on())
        self._thread = threading.Thread(target=lambda: None)
        self._thread.start()

    async def _beat_on(self) -> None:
        while not self._is_closed:
            self._heartbeat()
            await asyncio.sleep(self._policies.heartbeat_seconds())


async def lease_kept(bed: Bed, config: WorkerConfig, lease: float) -> list[str]:
    """A handler hogs the event loop until its lease was taken away, or for longer than the lease; what the checker says
    of it."""
    begun, over = threading.Event(), threading.Event()
    taken: list[Any] = []

    async def block() -> None:
        begun.set()
        deadline = time.monotonic() + (1.2 * lease if lease == LEASE else PATIENCE)
        while not taken and time.monotonic() < deadline:
            time.sleep(0.02)  # noqa: ASYNC251 - just what nobody should do

    def reap() -> None:
        begun.wait(PATIENCE)
        while not over.wait(0.02):
            taken.extend(bed.store.do(Reap()))

    bed.queue(QueuePolicy(lease_seconds=lease, max_attempts=1))
    bed.enqueue(bed.handle(block))
    rival = threading.Thread(target=reap)
    rival.start()
    try:
        async with asyncio.timeout(PATIENCE):
            await Worker(bed.store, bed.registry, config, emit=bed.log).run()
    finally:
        over.set()
        begun.set()
        rival.join()
    return check_calm(snapshot(bed.store))


SETTINGS: dict[str, Any] = {"handle_signals": False, "maintain": False, "drain": True}


async def test_a_worker_that_beats_in_time_from_a_thread_of_its_own_keeps_its_lease(bed: Bed) -> None:
    assert await lease_kept(bed, WorkerConfig(**SETTINGS), LEASE) == []


async def test_heartbeats_slower_than_the_lease_are_found(bed: Bed) -> None:
    broken = await lease_kept(bed, BeatsSlowerThanTheLease(**SETTINGS, heartbeat_seconds=3600), 0.5)

    assert broken[0].startswith("5:")


async def test_heartbeats_in_the_handlers_thread_are_found(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Leases", BeatsOnTheLoop)

    broken = await lease_kept(bed, WorkerConfig(**SETTINGS), 0.5)

    assert broken[0].startswith("5:")


# --- a wake-up and nothing behind it ----------------------------------------------------------------------------------


async def test_a_wake_up_with_no_poll_behind_it_is_found(bed: Bed) -> None:
    """No wake-up arrives. A worker that polls does its jobs all the same; one that does not never hears of its own."""
    with scratch_folder() as folder:
        deaf = Bed(open_sqlite(folder / "jobs.db"))
        for one in (bed, deaf):
            one.handle(lambda: None, kind="work", mode="thread")
            one.queue(QueuePolicy())
            one.store.do(SetGate("notify", is_open=False, actor="test", reason="no wake-up arrives"))
        async with bed.working(poll_seconds=0.1), deaf.working(poll_seconds=3600) as worker:
            looked = -1
            while looked < 1 or looked != worker.stats().exchanges:  # until it has looked, and waits
                looked = worker.stats().exchanges
                await _done([_acknowledged(bed)], bed)
            records = [_acknowledged(deaf)]
            await _done([_acknowledged(bed), _acknowledged(bed)], bed)
            await _done([_acknowledged(bed)], bed)
            broken = check(records, snapshot(deaf.store))
        deaf.store.close()

    assert "acknowledged and never ended" in broken[0]


async def _done(records: list[Record], bed: Bed) -> None:
    await until(lambda: all(bed.job(record.job).finished_at for record in records), PATIENCE)


def _acknowledged(bed: Bed) -> Record:
    return Record("enqueue", "ok", "client", bed.enqueue("work"))


# --- what is on the disk ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not can_inject(), reason="strace is not there, or may not trace")
@pytest.mark.parametrize(("store", "is_right"), [("Planted", True), ("SynchronousNormal", False)])
def test_a_commit_that_is_acknowledged_in_memory_is_found(tmp_path: Path, store: str, is_right: bool) -> None:
    trace = tmp_path / "trace"
    tracer = ["strace", "-f", "-o", str(trace), "-e", "trace=pwrite64,fdatasync,fsync,write", "-e", "signal=none"]

    done = subprocess.run(
        [*tracer, sys.executable, str(CHILDREN / "acknowledge.py"), str(tmp_path / "jobs.db"), store, "10"],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    broken = check_synced(trace.read_text(errors="replace").splitlines())

    assert done.stdout.split() == ["ok"] * 10
    assert (broken == []) is is_right, broken


def write_in_place(root: Root, path: str, content: bytes, **_: Any) -> None:
    """The bug: the file is opened under its name and filled bit by bit."""
    target = os.open(root.path / path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for first in range(0, len(content), 4):
        os.write(target, content[first : first + 4])
    os.fsync(target)
    os.close(target)


@pytest.mark.parametrize(("write", "is_right"), [(write_file, True), (write_in_place, False)])
def test_a_write_without_a_rename_is_found(tmp_path: Path, write: Callable[..., Any], is_right: bool) -> None:
    old, new = b"old content", b"the new content"
    seen: list[bytes | None] = []
    (tmp_path / "f").write_bytes(old)
    with Root(tmp_path) as root:

        def look(_: str) -> None:
            seen.append((tmp_path / "f").read_bytes() if (tmp_path / "f").exists() else None)

        with watch(look):
            write(root, "f", new, overwrite=True, check=lambda: None, tag=Tag("j", 1))
        look("")

    assert seen[-1] == new
    assert (check_reads(seen, (old, new)) == []) is is_right


# --- processes --------------------------------------------------------------------------------------------------------


def kill_parent(root: int) -> None:
    """The bug: who was started by the process that is ended is forgotten."""
    os.kill(root, signal.SIGKILL)


@pytest.mark.parametrize(("kill", "is_right"), [(kill_tree, True), (kill_parent, False)])
def test_a_kill_of_the_parent_alone_is_found(kill: Callable[[int], None], is_right: bool) -> None:
    child = subprocess.Popen([sys.executable, str(CHILDREN / "breed.py")], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pids = [int(word) for word in child.stdout.readline().split()]
    try:
        kill(child.pid)
        child.wait(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while is_right and check_gone(pids) and time.monotonic() < deadline:
            time.sleep(0.01)  # a signal is delivered when the process next runs
        broken = check_gone(pids)
    finally:
        for pid in pids[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.stdout.close()

    assert (broken == []) is is_right, broken

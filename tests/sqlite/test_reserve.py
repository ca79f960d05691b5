"""Space kept for outcomes: on a full disk no new work is taken on, and what was done is still written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import DiskFull
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import Grant
from tenure.model.outcome import Completed, Failed
from tenure.model.step import NewGroup
from tenure.store.contract import Claim, EditJob, Enqueue, Exchange, Heartbeat, Hold, Settle
from tenure.store.flow import FillGroup, Signal
from tenure.store.memory import WriteAgentEvents, WriteMemories
from tenure.store.queries import CountJobs, GetJobs
from tenure.store.sqlite import reserve
from tenure.store.sqlite.store import SqliteStore
from tenure.store.workflows import JoinWorkflow, NewWorkflow, StartWorkflow
from tests.sqlite.bed import WORKER, job, put, small_disk, start_child
from tests.waiting import until
from tests.worker.bed import Bed

JOBS = 600
LARGE = Enqueue([job(payload='"' + "x" * 10_000 + '"') for _ in range(400)])
"""More than the WAL has room for without growing."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", megabytes=40) as made:
        yield made


@pytest.fixture
def store(disk: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(f"sqlite:///{disk}/jobs.db")
    made.migrate()
    yield made
    made.close()


def fill(disk: Path) -> Path:
    """Take up every last block, and leave the WAL no room of its own."""
    connection = sqlite3.connect(disk / "jobs.db")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    filler = disk / "filler"
    file = os.open(filler, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(file, bytes(4096)):
            pass
    os.close(file)
    assert os.statvfs(disk).f_bfree == 0
    return filler


def held(store: SqliteStore, number: int) -> list[Grant]:
    store.do(Enqueue([job() for _ in range(number)]))
    return store.do(Claim(WORKER, ["default"], number))


def count(store: SqliteStore) -> dict[str, int]:
    return {each.state: each.jobs for each in store.do(CountJobs())}


def refusal(store: SqliteStore, request: Any) -> str:
    with pytest.raises(DiskFull) as caught:
        store.do(request)
    return str(caught.value)


def test_what_was_done_is_written_on_a_full_disk_and_nothing_new_is_taken_on(disk: Path, store: SqliteStore) -> None:
    grants = held(store, JOBS)
    waiting = put(store)
    filler = fill(disk)

    refusal(store, LARGE)
    beat = store.do(Heartbeat([Hold(grant.id, grant.token) for grant in grants]))
    answers = store.do(Settle([Completed(grant.id, grant.token, '"done"') for grant in grants[:400]]))
    alone = store.do(Exchange([Completed(grants[0].id, grants[0].token)], None))
    rest = [Failed(grant.id, grant.token, "no", retry_after_seconds=0) for grant in grants[400:]]
    exchanged = store.do(Exchange(rest, Claim(WORKER, ["default"], 10)))

    assert not beat.lost
    assert {answer.state for answer in answers} == {"succeeded"}
    assert {answer.state for answer in exchanged.settled.values()} == {"queued"}
    assert (alone.settled, alone.refused) == ({}, None)
    assert exchanged.grants == []
    assert isinstance(exchanged.refused, DiskFull)
    assert count(store) == {"succeeded": 400, "queued": 201}
    for request in (Enqueue([job()]), Claim(WORKER, ["default"], 1), Exchange([], Claim(WORKER, ["default"], 1))):
        assert "Make 24 MB free" in refusal(store, request)

    filler.unlink()
    store._database.reserve._look_at = 0.0
    put(store)
    assert (disk / "jobs.db-reserve").stat().st_blocks * 512 >= reserve.BYTES
    assert waiting in {grant.id for grant in store.do(Claim(WORKER, ["default"], 500))}


def test_nothing_else_that_grows_the_database_takes_up_what_is_kept_for_outcomes(
    disk: Path, store: SqliteStore
) -> None:
    """Memories, signals, workflows and the children of groups were written into it until it was full."""
    [grant] = held(store, 1)
    waiting = put(store)
    fill(disk)
    refusal(store, LARGE)
    store.do(Heartbeat([Hold(grant.id, grant.token)]))
    group = NewGroup("children", (job(),))

    for request in (
        FillGroup(grant.id, grant.token, group),
        Signal("go"),
        StartWorkflow(NewWorkflow(new_job_id(), "w", total=0, digest="")),
        JoinWorkflow([job()]),
        EditJob(waiting, "ann", "larger", payload='"more"'),
        WriteAgentEvents([]),
        WriteMemories([]),
    ):
        assert "Make 24 MB free" in refusal(store, request)


def test_a_thousand_outcomes_one_by_one_fit_into_the_reserve(disk: Path, store: SqliteStore) -> None:
    """Far more pages than it has: the WAL is checkpointed, and used again from its start."""
    grants = held(store, 2000)
    fill(disk)

    for grant in grants:
        assert store.do(Settle([Completed(grant.id, grant.token)]))[0].state == "succeeded"


def test_another_process_that_has_not_met_the_full_disk_leaves_the_reserve_alone(
    disk: Path, store: SqliteStore
) -> None:
    [grant] = held(store, 1)
    other = start_child("fill", f"sqlite:///{disk}/jobs.db", "0", "wait")
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    fill(disk)
    refusal(store, LARGE)
    store.do(Settle([Completed(grant.id, grant.token)]))

    out, _ = other.communicate("go\n", timeout=30)

    accepted, *codes = out.splitlines()[0].split()
    assert (accepted, codes) == ("0", ["disk_full"] * 3)


def test_two_that_find_the_disk_full_at_once_both_get_through(disk: Path, store: SqliteStore) -> None:
    grants = held(store, 8)
    fill(disk)

    async def settle_all() -> list[Any]:
        return await asyncio.gather(
            *(store.ado(Settle([Completed(grant.id, grant.token, '"%s"' % ("x" * 9000))])) for grant in grants)
        )

    answers = asyncio.run(settle_all())

    assert {answer.state for [answer] in answers} == {"succeeded"}


@pytest.mark.anyio
async def test_a_worker_ends_its_job_on_a_full_disk(disk: Path, store: SqliteStore) -> None:
    bed = Bed(store)

    async def work() -> str:
        fill(disk)
        return "x" * 20_000

    job_id = bed.enqueue(bed.handle(work))

    async with bed.working():
        await until(lambda: bed.job(job_id).state == "succeeded")
        await until(lambda: "store_away" in bed.log.names())

    assert bed.attempts(job_id) == []
    told = [event for event in bed.log.events if event.name == "store_away"]
    assert {event.fields["code"] for event in told} == {"disk_full"}


def test_without_room_for_a_reserve_there_is_none_and_work_goes_on(disk: Path, store: SqliteStore) -> None:
    with (disk / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 24 * 1024 * 1024)

    [grant] = held(store, 1)

    assert not (disk / "jobs.db-reserve").exists()
    assert store.do(Settle([Completed(grant.id, grant.token)]))[0].state == "succeeded"
    assert state(store, grant.id) == "succeeded"


def test_only_who_claims_makes_a_reserve(disk: Path, store: SqliteStore) -> None:
    put(store)
    assert not (disk / "jobs.db-reserve").exists()

    store.do(Claim(WORKER, ["default"], 1))

    made = (disk / "jobs.db-reserve").stat()
    assert (made.st_size, made.st_mode & 0o777) == (reserve.BYTES, 0o600)


def state(store: SqliteStore, job_id: JobId) -> str:
    [found] = store.do(GetJobs([job_id]))
    assert found is not None
    return found.state


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_a_file_that_was_linked_to_the_reserves_place_is_left_as_it_is(
    disk: Path, store: SqliteStore, link: str
) -> None:
    precious = disk / "precious"
    precious.write_bytes(b"x" * 100)
    getattr(disk / "jobs.db-reserve", link)(precious)
    [grant] = held(store, 1)
    fill(disk)

    refusal(store, Settle([Completed(grant.id, grant.token, '"%s"' % ("x" * 50_000))]))

    assert precious.read_bytes() == b"x" * 100


def test_a_reserve_that_is_being_made_is_not_taken_for_a_spent_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six workers of one process that began at once: one claim was refused with 24 GB free on the disk."""
    go, begun = threading.Event(), threading.Semaphore(0)

    def allocate(file: int) -> None:
        begun.release()
        assert go.wait(30)
        os.ftruncate(file, reserve.BYTES)

    monkeypatch.setattr(reserve, "_allocate", allocate)
    monkeypatch.setattr(reserve, "LOOK_SECONDS", 3600.0)
    kept = reserve.Reserve(tmp_path / "jobs.db")
    claim = Claim(WORKER, ["default"])
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(kept.admit, claim)]
        assert begun.acquire(timeout=30)
        both.append(threads.submit(kept.admit, claim))  # it looks, and finds the file empty
        assert begun.acquire(timeout=30)

        try:
            assert kept.admit(claim) is claim
        finally:
            go.set()

        assert [one.result(30) for one in both] == [claim, claim]

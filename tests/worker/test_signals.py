"""Real processes and real signals: kill, pause, stop, and what becomes of the job."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from pathlib import Path

import pytest

from tenure.cli.demo.stage import freeze
from tenure.store.queries import ListWorkers
from tests.waiting import until, wait_until
from tests.worker.bed import Bed
from tests.worker.crews import Crew, crew, words

LEASE = 1.5
PATIENCE = 45.0
"""Seconds that a busy machine may need to start a worker and run a job; the usual lease of 60 s takes longer."""


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where handlers write what they do."""
    return tmp_path / "notes"


def payload(notes: Path) -> str:
    return json.dumps({"file": str(notes), "until": str(notes) + ".go"})


@pytest.mark.anyio
async def test_a_job_whose_worker_is_killed_is_taken_over_after_its_lease(
    bed: Bed, url: str, tmp_path: Path, notes: Path
) -> None:
    job_id = bed.enqueue("hold", payload(notes))
    with crew(url, tmp_path, lease_seconds=LEASE) as first:
        await until(lambda: words(notes, "begun"))
        first.send(signal.SIGKILL)
        first.process.wait()
    killed_at = time.monotonic()

    async def hold() -> str:
        return "taken over"

    bed.handle(hold)
    async with bed.working():
        await until(lambda: bed.job(job_id).state == "succeeded")

    assert time.monotonic() - killed_at < LEASE + PATIENCE
    job = bed.job(job_id)
    assert (job.attempt, job.token, job.crashes, job.result) == (2, 2, 1, "taken over")
    assert [attempt.failure_class for attempt in bed.attempts(job_id)] == ["crash"]


@pytest.mark.anyio
async def test_a_worker_that_was_paused_past_its_lease_is_refused(
    bed: Bed, url: str, tmp_path: Path, notes: Path
) -> None:
    job_id = bed.enqueue("hold", payload(notes))
    with crew(url, tmp_path, lease_seconds=LEASE) as zombie:
        await until(lambda: words(notes, "begun"))
        await asyncio.to_thread(freeze, zombie.process.pid)

        async def hold() -> str:
            return "the newer one"

        bed.handle(hold)
        async with bed.working():
            await until(lambda: bed.job(job_id).state == "succeeded")
        Path(str(notes) + ".go").touch()  # noqa: ASYNC240 - one file
        zombie.send(signal.SIGCONT)
        await until(lambda: "lease_lost" in zombie.names())

    job = bed.job(job_id)
    assert (job.state, job.result, job.token) == ("succeeded", "the newer one", 2)
    refused = [event for event in zombie.events() if event["event"] == "lease_lost"]
    assert refused[0]["job"] == job_id
    assert refused[0]["token"] == 1


@pytest.mark.parametrize("kind", ["heed", "hold"])
@pytest.mark.anyio
async def test_sigterm_during_a_long_handler_hands_its_job_on_within_a_second(
    bed: Bed, url: str, tmp_path: Path, notes: Path, kind: str
) -> None:
    """`heed` gives its job back by itself; `hold` goes on and is stopped when the grace period is over."""
    begun: list[float] = []

    async def take() -> str:
        begun.append(time.monotonic())
        return "handed on"

    bed.handle(take, kind=kind)
    job_id = bed.enqueue(kind, payload(notes))
    with crew(url, tmp_path, grace_seconds=0.2) as first:
        await until(lambda: words(notes, "begun"))
        async with bed.working():
            sent = time.monotonic()
            first.send(signal.SIGTERM)
            await until(lambda: begun)
            assert begun[0] - sent < 1.0
            await until(lambda: first.process.poll() is not None)

    job = bed.job(job_id)
    assert (job.result, job.attempt, job.token, job.crashes) == ("handed on", 1, 2, 0)
    assert first.process.returncode == 0
    assert [attempt.outcome for attempt in bed.attempts(job_id)] == ["released"]


@pytest.mark.parametrize("is_ignored", [False, True])
def test_sighup_stops_a_worker_unless_it_is_ignored(
    bed: Bed, url: str, tmp_path: Path, notes: Path, is_ignored: bool
) -> None:
    """A closed terminal hangs up; under nohup the signal is ignored from the start."""
    job_id = bed.enqueue("heed", payload(notes))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    try:
        first = Crew(url, tmp_path / "crew.log", {})
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        wait_until(lambda: words(notes, "begun"))
        first.send(signal.SIGHUP)
        if is_ignored:
            first.send(signal.SIGTERM)
        assert first.process.wait() == 0
        assert first.names().count("stopping") == 1
    finally:
        first.end()

    assert (bed.job(job_id).state, bed.job(job_id).attempt) == ("queued", 0)


def test_a_second_signal_does_not_wait_for_the_grace_period(bed: Bed, url: str, tmp_path: Path, notes: Path) -> None:
    job_id = bed.enqueue("hold", payload(notes))
    with crew(url, tmp_path, grace_seconds=600) as first:
        wait_until(lambda: words(notes, "begun"))
        first.send(signal.SIGINT)
        wait_until(lambda: "stopping" in first.names())
        assert bed.job(job_id).state == "running"
        first.send(signal.SIGINT)
        assert first.process.wait() == 0

    assert (bed.job(job_id).state, bed.job(job_id).attempt) == ("queued", 0)
    assert bed.store.do(ListWorkers()) == []


def test_a_running_handler_finishes_within_the_grace_period(bed: Bed, url: str, tmp_path: Path, notes: Path) -> None:
    job_id = bed.enqueue("hold", payload(notes))
    with crew(url, tmp_path, grace_seconds=600) as first:
        wait_until(lambda: words(notes, "begun"))
        first.send(signal.SIGTERM)
        wait_until(lambda: "stopping" in first.names())
        Path(str(notes) + ".go").touch()
        assert first.process.wait() == 0

    assert (bed.job(job_id).state, bed.job(job_id).result) == ("succeeded", "token 1")


def test_a_service_manager_is_told(bed: Bed, url: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = str(tmp_path / "notify")
        manager.bind(address)
        environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "400000"}
        first = Crew(url, tmp_path / "crew.log", {}, environment)
        try:
            heard = {manager.recv(100), manager.recv(100), manager.recv(100)}
            assert heard == {b"READY=1", b"WATCHDOG=1"}
            first.send(signal.SIGTERM)
            while manager.recv(100) != b"STOPPING=1":
                continue
            assert first.process.wait() == 0
        finally:
            first.end()


def test_the_log_names_what_happened_and_nothing_of_the_payload(
    bed: Bed, url: str, tmp_path: Path, notes: Path
) -> None:
    job_id = bed.enqueue("quick", json.dumps({"file": str(notes), "secret": "4711-xyz"}))
    with crew(url, tmp_path, drain=True) as first:
        assert first.process.wait() == 0

    told = [event for event in first.events() if event.get("job") == job_id]
    assert [event["event"] for event in told] == ["claimed", "started", "completed"]
    assert {"worker", "queue", "kind", "attempt", "duration", "time", "level"} <= set(told[-1])
    assert "4711-xyz" not in first.text()

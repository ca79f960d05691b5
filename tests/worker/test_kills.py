"""Workers killed and paused at random for as long as you like (TENURE_KILLS): every job is accounted for."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TypedDict

import pytest

from tenure.model.ids import JobId, new_job_id
from tenure.model.job import Job, NewJob
from tenure.model.state import ACTIVE
from tenure.store.queries import CountJobs, ListJobs
from tests.waiting import wait_until
from tests.worker.bed import Bed
from tests.worker.crews import Crew, words

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("TENURE_KILLS", "8"))
LONG = 300
"""From so many faults on, the time to drain is judged; a short run on a busy machine only tells it."""
LEASE = 2.0
WORKERS = 3
SLOTS = 4
BACKLOG = 40


@contextmanager
def crews(url: str, folder: Path) -> Iterator[list[Crew]]:
    started: list[Crew] = []
    try:
        yield started
    finally:
        for each in started:
            each.end()


@pytest.mark.timeout(120 + 6 * KILLS)
def test_workers_that_are_killed_and_paused_at_random_lose_nothing(bed: Bed, url: str, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    run = Run(bed, random.Random(seed), tmp_path / "notes")

    with crews(url, tmp_path) as started:

        def start() -> Crew:
            settings = {"lease_seconds": LEASE, "concurrency": SLOTS, "prefetch": 4}
            started.append(Crew(url, tmp_path / f"crew-{len(started)}.log", settings))
            return started[-1]

        team = [start() for _ in range(WORKERS)]
        run.feed(BACKLOG)
        wait_until(lambda: words(run.notes, "run"))
        for number in range(KILLS - 1):
            time.sleep(run.chance.uniform(0.05, 0.5))  # the moment of the kill is what is random here
            run.feed(BACKLOG)
            place = run.chance.randrange(WORKERS)
            victim = team[place]
            if number % 5 == 4:
                run.freeze_while_holding(victim)
                time.sleep(LEASE * 1.5)
                before = victim.names().count("lease_lost")
                victim.send(signal.SIGCONT)
                run.wait_until_refused(victim, before)
            else:
                victim.send(signal.SIGKILL)
                victim.process.wait()
                team[place] = start()
        killed_at, crashed = run.kill_the_last(team)
        wait_until(lambda: _is_drained(bed), 60 + KILLS)
        refused = sum(each.names().count("lease_lost") for each in started)

    ended = {job.id: job for job in _all_jobs(bed)}
    assert set(ended) == set(run.scripts)
    for job_id, script in run.scripts.items():
        _check(bed, ended[job_id], fails=script["always_fails"])
    _check_runs(ended, words(run.notes, "run"))
    over = max(_seconds_beyond_its_work(bed, job, run.scripts[job.id], killed_at) for job in ended.values())
    print(
        f"{KILLS} faults, {len(ended)} jobs, {refused} late outcomes refused; the last kill left {crashed} jobs held, "
        f"and all had ended {over:.2f} s after it, their own work not counted; the bound is {LEASE + 2:g} s"
    )
    assert KILLS < LONG or over <= LEASE + 2


class Run:
    """Jobs by their scripts, fed so that there is always work, and never much of it."""

    def __init__(self, bed: Bed, chance: random.Random, notes: Path) -> None:
        self._bed = bed
        self.chance = chance
        self.notes = notes
        self.scripts: dict[JobId, Script] = {}

    def feed(self, backlog: int) -> None:
        """Enqueue as many jobs as are missing to so many unfinished ones. Every tenth always fails."""
        missing = backlog - sum(count.jobs for count in self._bed.store.do(CountJobs(states=sorted(ACTIVE))))
        jobs = []
        for _ in range(missing):
            script: Script = {
                "file": str(self.notes),
                "seconds": round(self.chance.uniform(0.05, 0.6), 3),
                "always_fails": len(self.scripts) % 10 == 0,
            }
            attempts = 3 if script["always_fails"] else 1000
            jobs.append(
                NewJob(id=new_job_id(), kind="write_under_token", payload=json.dumps(script), max_attempts=attempts)
            )
            self.scripts[jobs[-1].id] = script
        if jobs:
            self._bed.enqueue_many(jobs)

    def held_by(self, crew: Crew) -> list[JobId]:
        held = self._bed.store.do(ListJobs(states=["leased", "running"], limit=200)).items
        return [job.id for job in held if f"-{crew.process.pid}-" in str(job.lease_owner)]

    def freeze_while_holding(self, crew: Crew) -> None:
        """Give it work and stop it while it holds some."""

        def is_holding() -> bool:
            self.feed(BACKLOG)
            if not self.held_by(crew):
                return False
            crew.send(signal.SIGSTOP)
            if self.held_by(crew):
                return True
            crew.send(signal.SIGCONT)  # it ended between the look and the signal
            return False

        wait_until(is_holding)

    def wait_until_refused(self, crew: Crew, before: int) -> None:
        """Wait until it has noticed that its leases are lost."""
        wait_until(lambda: crew.names().count("lease_lost") > before, 60)

    def kill_the_last(self, team: list[Crew]) -> tuple[datetime, int]:
        """The last kill: of one that holds jobs, while the others are up and have a slot for each job that is left.
        Answers the moment, by the store's clock, and how many jobs the victim held."""
        wait_until(lambda: all("worker_started" in each.names() for each in team), 60)
        wait_until(lambda: _is_drained(self._bed), 60 + KILLS)
        self.feed((WORKERS - 1) * SLOTS)
        victim = team[0]
        deadline = time.monotonic() + 30
        while not self.held_by(victim):
            assert time.monotonic() < deadline, "the victim was given nothing"
            self.feed((WORKERS - 1) * SLOTS)
        victim.send(signal.SIGSTOP)  # what it holds now, it holds when it dies
        crashed = len(self.held_by(victim))
        victim.send(signal.SIGKILL)
        victim.process.wait()
        return self._bed.store.now(), crashed


class Script(TypedDict):
    """What a job's handler does."""

    file: str
    seconds: float
    always_fails: bool


def _seconds_beyond_its_work(bed: Bed, job: Job, script: Script, killed_at: datetime) -> float:
    """How long after the last kill a job ended, by the store's clock, without what its handler itself takes: the
    seconds of its script for each run that ended later. A retry is due at once: there are no delays to take off."""
    assert job.finished_at is not None
    runs = sum(row.ended_at > killed_at and row.outcome != "expired" for row in bed.attempts(job.id))
    runs += job.state == "succeeded" and job.finished_at > killed_at
    return (job.finished_at - killed_at).total_seconds() - runs * script["seconds"]


def _is_drained(bed: Bed) -> bool:
    return all(count.state in {"succeeded", "dead"} for count in bed.store.do(CountJobs()))


def _all_jobs(bed: Bed) -> Iterator[Job]:
    after: str | None = None
    while True:
        page = bed.store.do(ListJobs(limit=200, after=after))
        yield from page.items
        if page.next is None:
            return
        after = page.next


def _check(bed: Bed, job: Job, *, fails: bool) -> None:
    """The state that the script says, and attempts that add up: spent are those that ended by the handler and those in
    which the worker vanished while it held only this job. All others are refunded."""
    rows = bed.attempts(job.id)
    assert job.state == ("dead" if fails else "succeeded"), job
    ended = [row for row in rows if row.outcome in {"retried", "dead"}]
    assert job.attempt == len(ended) + job.crashes + (not fails)
    assert job.crashes <= sum(row.outcome == "expired" for row in rows)
    tokens = {row.token for row in rows}
    assert len(tokens) == len(rows)
    assert max(tokens, default=0) <= job.token - (not fails)
    if fails:
        assert job.attempt == 3
        assert len(bed.letters(job.id)) == 1
    else:
        assert job.result == job.token, "the outcome that counts is that of the newest token"


def _check_runs(ended: Mapping[JobId, Job], runs: list[list[str]]) -> None:
    """No token was ever given to two handlers, and none ran beyond the newest."""
    seen = [(job_id, token) for _, job_id, token, _ in runs]
    assert len(seen) == len(set(seen))
    assert all(int(token) <= ended[JobId(job_id)].token for job_id, token in seen)

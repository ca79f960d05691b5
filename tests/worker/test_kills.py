"""Workers killed and paused at random for as long as you like (TENURE_KILLS): every job is accounted for."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tenure.model.ids import JobId, new_job_id
from tenure.model.job import Job, NewJob
from tenure.store.reading import CountJobs, ListJobs
from tests.worker.bed import Bed, until_sync
from tests.worker.crews import Crew, words

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("TENURE_KILLS", "25"))
LEASE = 2.0
WORKERS = 3


@contextmanager
def crews(url: str, folder: Path) -> Iterator[list[Crew]]:
    started: list[Crew] = []
    try:
        yield started
    finally:
        for each in started:
            each.end()


@pytest.mark.timeout(60 + 4 * KILLS)
def test_workers_that_are_killed_and_paused_at_random_lose_nothing(bed: Bed, url: str, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    notes = tmp_path / "notes"
    jobs = [_new_job(notes, chance, fails=n % 10 == 0) for n in range(60 + 25 * KILLS)]
    bed.enqueue_many(jobs)

    with crews(url, tmp_path) as started:

        def start() -> Crew:
            settings = {"lease_seconds": LEASE, "concurrency": 4, "prefetch": 4}
            started.append(Crew(url, tmp_path / f"crew-{len(started)}.log", settings))
            return started[-1]

        team = [start() for _ in range(WORKERS)]
        until_sync(lambda: words(notes, "run"))
        for number in range(KILLS):
            time.sleep(chance.uniform(0.05, 0.5))  # the moment of the kill is what is random here
            place = chance.randrange(WORKERS)
            victim = team[place]
            if number % 5 == 4:
                victim.send(signal.SIGSTOP)
                time.sleep(LEASE * 1.5)
                victim.send(signal.SIGCONT)
            else:
                victim.send(signal.SIGKILL)
                victim.process.wait()
                team[place] = start()
        last = time.monotonic()
        until_sync(lambda: _is_drained(bed), 30 + 2 * KILLS)
        drained_after = time.monotonic() - last
        refused = sum(each.names().count("lease_lost") for each in started)

    ended = {job.id: job for job in _all_jobs(bed)}
    assert len(ended) == len(jobs)
    for job in jobs:
        _check(bed, ended[job.id], fails=json.loads(job.payload)["always_fails"])
    _check_runs(ended, words(notes, "run"))
    assert refused > 0 or KILLS < 5
    print(f"{KILLS} faults, {refused} late outcomes refused, drained {drained_after:.1f} s after the last")


def _new_job(notes: Path, chance: random.Random, *, fails: bool) -> NewJob:
    script = {"file": str(notes), "seconds": round(chance.uniform(0.05, 0.6), 3), "always_fails": fails}
    return NewJob(
        id=new_job_id(), kind="write_under_token", payload=json.dumps(script), max_attempts=3 if fails else 1000
    )


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
    """The state that the script says, and attempts that add up: one row for each that did not succeed."""
    rows = bed.attempts(job.id)
    assert job.state == ("dead" if fails else "succeeded"), job
    spent = [row for row in rows if row.outcome != "released"]
    assert job.attempt == len(spent) + (not fails)
    assert job.token == len(rows) + (not fails)
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

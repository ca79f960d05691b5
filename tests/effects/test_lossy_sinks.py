"""Jobs whose messages and replies get lost, run by workers that are killed at random: nothing is sent twice blindly."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tenure
from tests.effects.sinks import LossySink

MAILER = Path(__file__).parent / "children/mailer.py"
LONG = bool(os.environ.get("TENURE_LONG"))
JOBS = 2000 if LONG else 200
SEED = int(os.environ.get("TENURE_SEED", "7"))

pytestmark = pytest.mark.timeout(600 if LONG else 120)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[tenure.App]:
    with tenure.App(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        app.queues.set(
            "mail", lease_seconds=1.0, max_attempts=1000, backoff=tenure.Backoff("constant", base_seconds=0.05)
        )
        yield app


@contextmanager
def mortal_workers(app: tenure.App, sink: LossySink, sort: str) -> Iterator[list[int]]:
    """Two workers, of which one is killed every now and then and a fresh one takes its place. Yields the deaths."""
    argv = [sys.executable, str(MAILER), app.url, str(sink.port), sort]
    chance = random.Random(SEED)
    print(f"TENURE_SEED={SEED}")
    workers = [subprocess.Popen(argv) for _ in range(2)]
    deaths: list[int] = []
    kill_at, calls = time.monotonic() + 1.0, 0

    def kill_one() -> None:
        nonlocal kill_at, calls
        # Not before they are at work again: on a busy machine they would be killed while they start, for ever.
        if time.monotonic() >= kill_at and sum(list(sink.calls.values())) > calls + 10:
            calls = sum(list(sink.calls.values()))
            victim = chance.randrange(2)
            workers[victim].send_signal(signal.SIGKILL)
            workers[victim].wait()
            deaths.append(workers[victim].pid)
            workers[victim] = subprocess.Popen(argv)
            kill_at = time.monotonic() + chance.uniform(0.3, 1.2)

    try:
        while _outstanding(app):
            for worker in workers:
                assert worker.poll() is None, "a worker ended by itself"
            kill_one()
            time.sleep(0.02)
        yield deaths
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _outstanding(app: tenure.App) -> int:
    return sum(count.jobs for count in app.queues.counts(state=["queued", "leased", "running"]))


def test_with_a_sink_that_knows_keys_every_job_has_exactly_one_accepted_effect(app: tenure.App) -> None:
    app.enqueue_many([app.new_job("mail", queue="mail") for _ in range(JOBS)])

    with LossySink(knows_keys=True, seed=SEED) as sink, mortal_workers(app, sink, "keyed") as deaths:
        assert deaths
        assert {count.state: count.jobs for count in app.queues.counts()} == {"succeeded": JOBS}
        assert sorted(sink.accepted.values()) == [1] * JOBS
        assert any(calls > 1 for calls in sink.calls.values()), "no call was repeated, so nothing was shown"
        print(f"{JOBS:,} jobs, {len(deaths)} deaths, {sum(sink.calls.values()):,} calls")
        # A later attempt shows a later token, so a sink that looks could refuse an earlier one.
        assert all(tokens == sorted(tokens) for tokens in sink.tokens.values())


def test_with_a_sink_that_does_not_no_job_repeats_a_call_by_itself(app: tenure.App) -> None:
    app.enqueue_many([app.new_job("mail", queue="mail") for _ in range(JOBS)])

    with LossySink(knows_keys=False, seed=SEED) as sink, mortal_workers(app, sink, "blind") as deaths:
        states = {count.state: count.jobs for count in app.queues.counts()}
        print(f"{JOBS:,} jobs, {len(deaths)} deaths, {states}")
        assert set(states) == {"succeeded", "waiting"}
        assert max(sink.calls.values()) == 1
        unknown = app.effects.all(state="unknown", limit=1000).items
        assert len(unknown) == min(states["waiting"], 1000)
        # Each job is accounted for: it has its reply, or it waits for a person.
        assert sum(states.values()) == JOBS

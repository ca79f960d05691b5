"""The measuring of `tenure bench`: alternating rounds on a user's own database, in a queue of their own.

A round measures the bare engine first and then Tenure, so that what is compared comes from the same seconds. Ratios are
taken within each round. Every loop ends after a number of jobs or a number of seconds, so that a database far away
takes no longer than one nearby.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tenure.errors import StoreUnavailable
from tenure.model.frozen import frozen
from tenure.observe.timing import bare_seconds

if TYPE_CHECKING:
    from tenure.app import App

QUEUE = "tenure-bench"
KIND = "tenure-bench"
CLIENTS = 50
MOST_SECONDS = 5.0
PATIENCE = 180.0
STOP_SECONDS = 10.0
SPREAD = 0.30
PAD = "x" * 180


@frozen
class Size:
    """How much of each is done in one round."""

    rounds: int
    each: int
    at_once: int
    bulk: int
    wakes: int


FULL = Size(rounds=5, each=1_000, at_once=5_000, bulk=20_000, wakes=100)
QUICK = Size(rounds=3, each=200, at_once=1_000, bulk=5_000, wakes=30)


@frozen
class Figure:
    """A median over the rounds. Not trusted if the rounds differ by more than 30 % of it, or there was only one."""

    name: str
    title: str
    unit: str
    median: float
    spread: float
    is_trusted: bool
    of_bare: float | None
    """The share of what the bare engine's synced commits, one after another, reach; the median of the rounds' own."""
    samples: list[float]


@frozen
class Benched:
    """The end of a bench. `removed`: how many jobs went with the queue afterwards."""

    engine: str
    version: str
    rounds: int
    quick: bool
    figures: list[Figure]
    removed: int


STEPS: Mapping[str, tuple[str, str]] = {
    "round_trip": ("the bare engine: one round trip", "ms"),
    "commit": ("the bare engine: synced commits, one after another", "/s"),
    "enqueue_each": ("enqueue, one at a time", "/s"),
    "enqueue_at_once": (f"enqueue, {CLIENTS} at once", "/s"),
    "enqueue_bulk": ("enqueue in bulk", "/s"),
    "drain": ("drain, one worker process", "/s"),
    "wake_p50": ("wake an idle worker, median", "ms"),
    "wake_p99": ("wake an idle worker, 99 of 100", "ms"),
}
"""In the order in which a round goes; what each is called, and its unit."""

SHARES = ("enqueue_each", "enqueue_at_once")


def one_round(app: App, size: Size, advance: Callable[[], None]) -> dict[str, float]:
    """Measure everything once. `advance` is called after each part."""
    found: dict[str, float] = {}

    def note(**values: float) -> None:
        found.update(values)
        advance()

    note(round_trip=1000 * bare_seconds(app.store, "round_trip", times=size.each, seconds=MOST_SECONDS))
    note(commit=1 / bare_seconds(app.store, "commit", times=size.each, seconds=MOST_SECONDS))
    done, seconds = _each(app, size.each)
    note(enqueue_each=done / seconds)
    more, seconds = asyncio.run(_at_once(app, size.at_once))
    note(enqueue_at_once=more / seconds)
    begun = time.perf_counter()
    app.enqueue_many(_job(app, i) for i in range(size.bulk))
    note(enqueue_bulk=size.bulk / (time.perf_counter() - begun))
    waiting = done + more + size.bulk
    note(drain=waiting / _drain(app, waiting))
    delays = sorted(_wakes(app, size.wakes))
    note(wake_p50=_percentile(delays, 50), wake_p99=_percentile(delays, 99))
    return found


PARTS = 7
"""How often a round advances."""


def figures(rounds: Sequence[Mapping[str, float]]) -> list[Figure]:
    """Draw the medians from the rounds."""
    return [_figure(name, rounds) for name in STEPS if rounds]


def _figure(name: str, rounds: Sequence[Mapping[str, float]]) -> Figure:
    samples = [one[name] for one in rounds]
    middle = median(samples)
    spread = (max(samples) - min(samples)) / middle if middle else 0.0
    share = median(one[name] / one["commit"] for one in rounds) if name in SHARES else None
    title, unit = STEPS[name]
    return Figure(name, title, unit, middle, spread, len(samples) > 1 and spread <= SPREAD, share, samples)


def _job(app: App, i: int) -> Any:
    return app.new_job(KIND, {"i": i, "pad": PAD}, queue=QUEUE)


def _each(app: App, jobs: int) -> tuple[int, float]:
    begun = time.perf_counter()
    done = 0
    while done < jobs and time.perf_counter() - begun < MOST_SECONDS:
        app.enqueue(_job(app, done))
        done += 1
    return done, time.perf_counter() - begun


async def _at_once(app: App, jobs: int) -> tuple[int, float]:
    """Tasks of one process that enqueue single jobs, each waiting for its own commit."""
    begun = time.perf_counter()
    done = 0

    async def client(number: int) -> None:
        nonlocal done
        for i in range(number, jobs, CLIENTS):
            if time.perf_counter() - begun > MOST_SECONDS:
                return
            await app.aio.enqueue(_job(app, i))
            done += 1

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return done, time.perf_counter() - begun


def _drain(app: App, jobs: int) -> float:
    """From the first handler start until the store has taken in every end."""
    with _worker(app, jobs) as lines:
        first = int(_awaited(lines, "first"))
        _awaited(lines, "last")
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and any(
            one.jobs for one in app.queues.counts(queue=QUEUE, state=("leased", "running"))
        ):
            time.sleep(0.001)
        return (time.monotonic_ns() - first) / 1e9


def _wakes(app: App, jobs: int) -> list[float]:
    """Milliseconds from the return of an enqueue to the start of the handler in the other process.

    A handler that starts before the enqueue has returned, as a busy machine lets happen, came at once: 0.
    """
    delays: list[float] = []
    with _worker(app, 0) as lines:
        _awaited(lines, "ready")
        begun = time.perf_counter()
        for i in range(jobs):
            if delays and time.perf_counter() - begun > MOST_SECONDS:
                break
            time.sleep(0.005 + 0.010 * (i * 7 % 10) / 10)  # idle again, and not in step with any poll
            app.enqueue(_job(app, i))
            returned = time.monotonic_ns()
            delays.append(max(0, int(_awaited(lines, str(i))) - returned) / 1e6)
    return delays


@contextmanager
def _worker(app: App, count: int) -> Iterator[Iterator[str]]:
    """A worker in a process of its own, in a session of its own: Ctrl-C is for us, who then end it."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tenure.cli.bench.worker", QUEUE, KIND, str(count)],
        env={**os.environ, "TENURE_URL": _absolute(app.url)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    # Should nothing happen any more (a gate was closed meanwhile), its lines end, and so does the waiting for them.
    late = threading.Timer(PATIENCE, process.kill)
    late.daemon = True
    late.start()
    try:
        yield iter(process.stdout.readline, "")
    finally:
        late.cancel()
        process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _awaited(lines: Iterator[str], word: str) -> str:
    """What follows the word in the worker's next line with it. Raises: StoreUnavailable if the worker ends before."""
    for line in lines:
        name, _, value = line.strip().partition(" ")
        if name == word:
            return value
    raise StoreUnavailable(
        f"The bench's worker ended, or was ended after {PATIENCE:.0f} s, before it said {word!r}. If it said why, that "
        "stands above; else look whether a gate was closed, or another worker serves this queue."
    )


def _absolute(url: str) -> str:
    """A URL that means the same file wherever the worker is started."""
    prefix = "sqlite:///"
    if not url.startswith(prefix):
        return url
    path, mark, rest = url.removeprefix(prefix).partition("?")
    return f"{prefix}{Path(path).absolute()}{mark}{rest}"


def _percentile(ordered: Sequence[float], share: int) -> float:
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * share // 100) - 1))]

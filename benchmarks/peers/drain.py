"""The workloads with a worker: drains (W3a, W3b) and latency (W4), over any side's hooks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.harness import Order, Side
from benchmarks.peers.tally import Tally
from benchmarks.protocol import Answer, CheckFailed, Request

TICK = 0.001
START_SECONDS = 45.0
"""How long worker processes may take until the first handler starts."""
STALL_SECONDS = 45.0
"""How long they may take from one handler start to the next, or from the last one until the store knows of it."""
WARM_UP = 20


def drain(side: Side, request: Request, before: int = 0) -> Answer:
    """W3a, W3b: from the first handler start until the store knows that every job is done.

    `before` is how many the store has kept as done from an earlier round.
    """
    side.fill(request.url, request.jobs)
    side.unfinished(request.url)  # so that the connection for the asking is there when the clock runs
    with workers(side, request, request.jobs) as (tally, processes):
        wait(processes, lambda: tally.count() >= request.jobs, tally)
        wait(processes, lambda: side.unfinished(request.url) == 0, tally)
        ended = time.monotonic_ns()
    check_all_ran(side, request, tally, request.jobs, before)
    seconds = (ended - tally.first()) / 1e9
    values = {"started_seconds": seconds_of_starts(tally, request.jobs)}
    return Answer(ok=True, jobs=request.jobs, seconds=seconds, checked=True, values=values)


def latency(side: Side, request: Request) -> Answer:
    """W4: an idle worker in another process; the next job is enqueued only after the last was started."""
    pause = random.Random(4)
    moments: list[tuple[int, int]] = []
    total = WARM_UP + request.jobs
    with workers(side, request, total) as (tally, processes), side.enqueuer(request.url) as enqueue:
        for i in range(total):
            time.sleep(pause.uniform(*side.pause))
            moments.append(enqueue(i))
            wait(processes, lambda i=i: tally.start_of(i) > 0, tally)  # type: ignore[misc]
        wait(processes, lambda: side.unfinished(request.url) == 0, tally)
    check_all_ran(side, request, tally, total)
    measured = range(WARM_UP, total)
    after_return = sorted((tally.start_of(i) - moments[i][1]) / 1e6 for i in measured)
    after_call = sorted((tally.start_of(i) - moments[i][0]) / 1e6 for i in measured)
    values = {
        "p50_ms": percentile(after_return, 50),
        "p99_ms": percentile(after_return, 99),
        "call_p50_ms": percentile(after_call, 50),
    }
    return Answer(ok=True, jobs=request.jobs, checked=True, values=values)


WORKLOADS: Mapping[str, Callable[[Side, Request], Answer]] = {
    "W3a": drain,
    "W3b": drain,
    "W4": latency,
}
PROCESSES: Mapping[str, int] = {"W3b": 2, "W7": 2}


def percentile(ordered: Sequence[float], share: int) -> float:
    """Give the nearest-rank percentile of sorted figures."""
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * share // 100) - 1))]


@contextmanager
def workers(side: Side, request: Request, jobs: int) -> Iterator[tuple[Tally, list[subprocess.Popen[bytes]]]]:
    """Start the worker processes, let them go together, and end them."""
    number = PROCESSES.get(request.do, 1)
    tally = Tally.create(Path(request.folder) / "tally", jobs)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for slot in range(number):
            order = Order(request.do, request.url, str(tally.path), jobs, slot)
            processes.append(subprocess.Popen(side.worker_command(order), stdin=subprocess.DEVNULL, stdout=sys.stderr))
        wait(processes, lambda: tally.let_go(number), tally)
        yield tally, processes
    finally:
        _end(processes)


def wait(processes: Sequence[subprocess.Popen[bytes]], reached: Callable[[], bool], tally: Tally) -> None:
    """Wait for a condition; give up when a worker died or nothing moves any more."""
    seen, seen_at = tally.count(), time.monotonic()
    while not reached():
        for process in processes:
            if process.poll() is not None:
                raise CheckFailed(f"a worker ended early with exit code {process.returncode}")
        if tally.count() != seen:
            seen, seen_at = tally.count(), time.monotonic()
        limit = STALL_SECONDS if seen else START_SECONDS
        if time.monotonic() - seen_at > limit:
            raise CheckFailed(f"nothing moved for {limit:.0f} s after {seen:,} handler starts")
        time.sleep(TICK)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def vacuum(request: Request) -> None:
    """Do what a store of this size has behind it: statistics and visibility. Then write out what the system still
    has in memory, or it would do so while the clock runs."""
    if request.engine == "postgres":
        import psycopg

        with psycopg.connect(request.url, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
    os.sync()


def ran_once(tally: Tally) -> int:
    """How many jobs were started, each of them once."""
    ran = sum(1 for _ in tally.starts())
    if tally.count() > ran:
        raise CheckFailed(f"{tally.count():,} handler starts for {ran:,} jobs: some ran twice")
    return ran


def seconds_of_starts(tally: Tally, jobs: int) -> float:
    """From the first handler start to the start of the last of `jobs`."""
    starts = sorted(moment for _, moment in tally.starts())
    return (starts[jobs - 1] - starts[0]) / 1e9


def check_all_ran(side: Side, request: Request, tally: Tally, runs: int, before: int = 0) -> None:
    ran = sum(1 for _ in tally.starts())
    if ran != tally.jobs:
        raise CheckFailed(f"{ran:,} of {tally.jobs:,} jobs were run")
    if tally.count() != runs:
        raise CheckFailed(f"{tally.count():,} handler starts instead of {runs:,}: some ran twice")
    left = side.unfinished(request.url)
    if left:
        raise CheckFailed(f"{left:,} jobs are left in the store")
    if side.keeps_rows and (done := side.finished(request.url)) != before + tally.jobs:
        raise CheckFailed(f"{done:,} jobs are kept as done instead of {before + tally.jobs:,}")

"""The workloads with a worker: drains (W3, W5, W6, W7) and latency (W4), over any side's hooks."""

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
from benchmarks.peers.tally import Tally, fails_once, turn
from benchmarks.protocol import Answer, CheckFailed, Request, Unsupported

TICK = 0.001
STALL_SECONDS = 45.0
WARM_UP = 20


def drain(side: Side, request: Request, before: int = 0) -> Answer:
    """W3a, W3b, W3t: from the first handler start until the store knows that every job is done.

    `before` is how many the store has kept as done from an earlier round.
    """
    side.fill(request.url, request.jobs)
    side.unfinished(request.url)  # so that the connection for the asking is there when the clock runs
    with _workers(side, request, request.jobs) as (tally, processes):
        _wait(processes, lambda: tally.count() >= request.jobs, tally)
        _wait(processes, lambda: side.unfinished(request.url) == 0, tally)
        ended = time.monotonic_ns()
    _check_all_ran(side, request, tally, request.jobs, before)
    seconds = (ended - tally.first()) / 1e9
    values = {"started_seconds": _spell_of_starts(tally, request.jobs)}
    return Answer(ok=True, jobs=request.jobs, seconds=seconds, checked=True, values=values)


def backlog(side: Side, request: Request) -> Answer:
    """W5: the first `jobs` handler starts out of a long queue. The next round goes on with what this one leaves."""
    if request.earlier is None:
        side.fill(request.url, request.backlog)
    look_after(request)
    waiting = side.unfinished(request.url)
    if request.earlier is None and waiting != request.backlog:
        raise CheckFailed(f"{waiting:,} jobs wait in the store instead of {request.backlog:,}")
    seconds, ran = _first_starts(side, request, request.backlog)
    left = side.unfinished(request.url)
    if not waiting - ran <= left <= waiting:
        raise CheckFailed(f"{ran:,} of {waiting:,} jobs were run, but {left:,} are left")
    return Answer(ok=True, jobs=request.jobs, seconds=seconds, checked=True)


def history(side: Side, request: Request) -> Answer:
    """W6: a drain beside a million finished jobs."""
    if request.earlier is None:
        side.fill_history(request.url, request.backlog)
    before = side.finished(request.url)
    if before < request.backlog:
        raise CheckFailed(f"{before:,} finished jobs in the store instead of {request.backlog:,}")
    side.fill(request.url, request.jobs)
    look_after(request)
    seconds, _ = _first_starts(side, request, request.jobs, until_done=True)
    done = side.finished(request.url)
    if done != before + request.jobs:
        raise CheckFailed(f"{done:,} finished jobs in the store instead of {before + request.jobs:,}")
    return Answer(ok=True, jobs=request.jobs, seconds=seconds, checked=True)


def held_snapshot(side: Side, request: Request) -> Answer:
    """W7: a drain by two processes while another session's snapshot holds every dead row back."""
    if request.engine != "postgres":
        raise Unsupported("only PostgreSQL keeps dead rows for a snapshot")
    side.fill(request.url, request.jobs, spread=True)
    look_after(request)
    failing = sum(fails_once(i, request.jobs) for i in range(request.jobs))
    with _snapshot(request.url), _workers(side, request, request.jobs) as (tally, processes):
        _wait(processes, lambda: tally.count() >= request.jobs + failing, tally)
        _wait(processes, lambda: side.unfinished(request.url) == 0, tally)
    _check_all_ran(side, request, tally, request.jobs + failing)
    tenth = request.jobs // 10
    starts = sorted(moment for _, moment in tally.starts())
    values = {
        "first_rate": tenth / ((starts[tenth] - starts[0]) / 1e9),
        "last_rate": tenth / ((starts[-1] - starts[-1 - tenth]) / 1e9),
        "overdue_s": _overdue(tally, starts, request.jobs),
    }
    return Answer(ok=True, jobs=request.jobs, seconds=(starts[-1] - starts[0]) / 1e9, checked=True, values=values)


def latency(side: Side, request: Request) -> Answer:
    """W4: an idle worker in another process; the next job is enqueued only after the last was started."""
    pause = random.Random(4)
    moments: list[tuple[int, int]] = []
    total = WARM_UP + request.jobs
    with _workers(side, request, total) as (tally, processes), side.enqueuer(request.url) as enqueue:
        for i in range(total):
            time.sleep(pause.uniform(*side.pause))
            moments.append(enqueue(i))
            _wait(processes, lambda i=i: tally.start_of(i) > 0, tally)  # type: ignore[misc]
        _wait(processes, lambda: side.unfinished(request.url) == 0, tally)
    _check_all_ran(side, request, tally, total)
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
    "W3t": drain,
    "W4": latency,
    "W5": backlog,
    "W6": history,
    "W7": held_snapshot,
}
PROCESSES: Mapping[str, int] = {"W3b": 2, "W7": 2}


def percentile(ordered: Sequence[float], share: int) -> float:
    """Give the nearest-rank percentile of sorted figures."""
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * share // 100) - 1))]


@contextmanager
def _workers(side: Side, request: Request, jobs: int) -> Iterator[tuple[Tally, list[subprocess.Popen[bytes]]]]:
    """Start the worker processes, let them go together, and end them."""
    number = PROCESSES.get(request.do, 1)
    tally = Tally.create(Path(request.folder) / "tally", jobs)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for slot in range(number):
            order = Order(request.do, request.url, str(tally.path), jobs, slot, threads=request.do == "W3t")
            processes.append(subprocess.Popen(side.worker_command(order), stdin=subprocess.DEVNULL, stdout=sys.stderr))
        _wait(processes, lambda: tally.let_go(number), tally)
        yield tally, processes
    finally:
        _end(processes)


def _wait(processes: Sequence[subprocess.Popen[bytes]], reached: Callable[[], bool], tally: Tally) -> None:
    """Wait for a condition; give up when a worker died or nothing moves any more."""
    seen, seen_at = tally.count(), time.monotonic()
    while not reached():
        for process in processes:
            if process.poll() is not None:
                raise CheckFailed(f"a worker ended early with exit code {process.returncode}")
        if tally.count() != seen:
            seen, seen_at = tally.count(), time.monotonic()
        elif time.monotonic() - seen_at > STALL_SECONDS:
            raise CheckFailed(f"nothing moved for {STALL_SECONDS:.0f} s after {seen:,} handler starts")
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


def look_after(request: Request) -> None:
    """Do what would have happened long before a store has grown so big: statistics, visibility, and on the disk
    whatever the system still has in memory, which it would write while the clock runs."""
    if request.engine == "postgres":
        import psycopg

        with psycopg.connect(request.url, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
    os.sync()


def _first_starts(side: Side, request: Request, waiting: int, *, until_done: bool = False) -> tuple[float, int]:
    """Run one worker until `jobs` handlers have started; gives the seconds between the first and the last of them."""
    with _workers(side, request, waiting) as (tally, processes):
        _wait(processes, lambda: tally.count() >= request.jobs, tally)
        if until_done:
            _wait(processes, lambda: side.unfinished(request.url) == 0, tally)
    ran = sum(1 for _ in tally.starts())
    if tally.count() > ran:
        raise CheckFailed(f"{tally.count():,} handler starts for {ran:,} jobs: some ran twice")
    return _spell_of_starts(tally, request.jobs), ran


def _spell_of_starts(tally: Tally, jobs: int) -> float:
    starts = sorted(moment for _, moment in tally.starts())
    return (starts[jobs - 1] - starts[0]) / 1e9


def _check_all_ran(side: Side, request: Request, tally: Tally, runs: int, before: int = 0) -> None:
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


def _overdue(tally: Tally, starts: Sequence[int], jobs: int) -> float:
    """Give the longest time by which a job's first start came after the start that its turn would have been."""
    late = (moment - starts[min(turn(i, jobs), jobs - 1)] for i, moment in tally.starts())
    return max(0, max(late, default=0)) / 1e9


@contextmanager
def _snapshot(url: str) -> Iterator[None]:
    """Hold a snapshot from another session, as a long report or a forgotten transaction would."""
    import psycopg

    with psycopg.connect(url, application_name=f"bench-snapshot-{os.getpid()}") as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM pg_class")
        yield
        connection.rollback()

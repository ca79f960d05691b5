"""The workloads that only Tenure is asked for: W5, W5d, W6, W7, W8 and W10."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers import drain
from benchmarks.protocol import Answer, CheckFailed, Request, Unsupported, payload

if TYPE_CHECKING:
    from benchmarks.tenure_side import TenureSide

PRIORITIES = 50
"""Of the jobs that W5d puts beside the drain."""
FAIL_EVERY = 50
WORKERS_PER_PROCESS = 20
REST_SECONDS = 60.0
"""W8 waits this long once all workers are registered: until then they import, connect and run each path once."""
IDLE_SECONDS = 60.0
"""W8 measures over this long: several polls and heartbeats of each worker, and one round of the leader's duties."""


def workloads(side: TenureSide) -> Mapping[str, Callable[[Request], Answer]]:
    """Each workload with its function."""
    return {
        "W5": lambda request: backlog(side, request),
        "W5d": lambda request: future_backlog(side, request),
        "W6": lambda request: history(side, request),
        "W7": lambda request: held_snapshot(side, request),
        "W8": lambda request: idle_workers(side, request),
        "W10": lambda request: long_session(side, request),
    }


def fails_once(i: int, jobs: int) -> bool:
    """Whether W7 wants job `i` to fail the first time: 2 % of the first three quarters."""
    return i % FAIL_EVERY == 0 and i < jobs * 3 // 4


def backlog(side: TenureSide, request: Request) -> Answer:
    """W5: the first `jobs` handler starts out of a long queue. The next round goes on with what this one leaves."""
    if not request.is_filled:
        side.prepare(request.url)
        side.tables(request.url).fill_backlog(request.backlog)
    drain.vacuum(request)
    waiting = side.unfinished(request.url)
    with drain.workers(side, request, request.backlog) as (tally, processes):
        drain.wait(processes, lambda: tally.count() >= request.jobs, tally)
    ran, left = drain.ran_once(tally), side.unfinished(request.url)
    if not waiting - ran <= left <= waiting:
        raise CheckFailed(f"{ran:,} of {waiting:,} jobs were run, but {left:,} are left")
    return Answer(ok=True, jobs=request.jobs, seconds=drain.seconds_of_starts(tally, request.jobs), checked=True)


def future_backlog(side: TenureSide, request: Request) -> Answer:
    """W5d: a drain beside jobs that are due tomorrow, at every priority."""
    if not request.is_filled:
        side.prepare(request.url)
        side.tables(request.url).fill_backlog(request.backlog, priorities=PRIORITIES, delay=86_400)
    drain.vacuum(request)
    return drain.drain(side, request, before=side.finished(request.url))


def history(side: TenureSide, request: Request) -> Answer:
    """W6: a drain beside a million finished jobs."""
    if not request.is_filled:
        side.prepare(request.url)
        side.tables(request.url).fill_history(request.backlog)
    drain.vacuum(request)
    answer = drain.drain(side, request, before=side.finished(request.url))
    return replace(answer, seconds=answer.values["started_seconds"])


# --- W7 ---------------------------------------------------------------------------------------------------------------


def held_snapshot(side: TenureSide, request: Request) -> Answer:
    """W7: a drain by two processes while another session's snapshot keeps every dead row."""
    side.prepare(request.url)
    side.fill(request.url, request.jobs)
    drain.vacuum(request)
    failing = sum(fails_once(i, request.jobs) for i in range(request.jobs))
    with _snapshot(request.url), drain.workers(side, request, request.jobs) as (tally, processes):
        drain.wait(processes, lambda: tally.count() >= request.jobs + failing, tally)
        drain.wait(processes, lambda: side.unfinished(request.url) == 0, tally)
    drain.check_all_ran(side, request, tally, request.jobs + failing)
    tenth = request.jobs // 10
    starts = sorted(moment for _, moment in tally.starts())
    values = {
        "first_rate": tenth / ((starts[tenth] - starts[0]) / 1e9),
        "last_rate": tenth / ((starts[-1] - starts[-1 - tenth]) / 1e9),
    }
    return Answer(ok=True, jobs=request.jobs, checked=True, values=values)


@contextmanager
def _snapshot(url: str) -> Iterator[None]:
    """Hold a snapshot from another session, as a long report or a forgotten transaction would."""
    import psycopg

    with psycopg.connect(url, application_name=f"bench-snapshot-{os.getpid()}") as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM pg_class")
        yield
        connection.rollback()


# --- W8 ---------------------------------------------------------------------------------------------------------------


def idle_workers(side: TenureSide, request: Request) -> Answer:
    """W8: the cost of idle workers, and how soon one of them starts a job."""
    side.prepare(request.url)
    stamp = Path(request.folder) / "started"
    each = min(WORKERS_PER_PROCESS, request.clients)
    command = [sys.executable, "-m", "benchmarks.tenure_idle", request.url, str(stamp), str(each)]
    processes = [subprocess.Popen(command) for _ in range(request.clients // each)]
    rest = REST_SECONDS if request.clients > WORKERS_PER_PROCESS else 1.0
    try:
        with _app(request.url) as app:
            noop = _noop(app)
            _wait_for_workers(side, request.url, len(processes) * each)
            time.sleep(rest)
            share = _cpu_share([p.pid for p in processes], request.url, min(rest, IDLE_SECONDS))
            delays = []
            pause = random.Random(8)
            for i in range(request.jobs):
                time.sleep(pause.uniform(0.01, 0.05))
                noop.enqueue({"i": i})
                returned = time.monotonic_ns()
                delays.append((_started(stamp, i) - returned) / 1e6)
        _check_counts(side, request.url, len(delays))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(20)
    values = {"cpu_share": share, "p99_ms": drain.percentile(sorted(delays), 99)}
    return Answer(ok=True, jobs=len(delays), checked=True, values=values)


def _wait_for_workers(side: TenureSide, url: str, number: int) -> None:
    deadline = time.monotonic() + 120
    while (found := side.tables(url).count("workers")) < number:
        if time.monotonic() > deadline:
            raise CheckFailed(f"only {found} of {number} workers came up in two minutes")
        time.sleep(0.2)


def _cpu_share(pids: list[int], url: str, seconds: float) -> float:
    """Of one core: the workers' processes and the server's, over a while of doing nothing."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        server = _parent(connection.info.backend_pid)
        before, begun = _cpu_seconds(pids, server), time.monotonic()
        time.sleep(seconds)
        return (_cpu_seconds(pids, server) - before) / (time.monotonic() - begun)


def _parent(backend: int) -> int:
    """The server's first process, whose children do the work.

    Raises:
        Unsupported: the server is on another machine.
    """
    try:
        name, rest = Path(f"/proc/{backend}/stat").read_text(encoding="utf-8").rsplit(")", 1)
    except OSError:
        name, rest = "", ""
    if "postgres" not in name:
        raise Unsupported("the server runs elsewhere, so that its share of a core cannot be seen")
    return int(rest.split()[1])


def _cpu_seconds(pids: list[int], server: int) -> float:
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    wanted = {*pids, server}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = stat.read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1]
        except OSError:
            continue
        fields = rest.split()
        if int(stat.parent.name) in wanted or int(fields[1]) == server:
            total += (int(fields[11]) + int(fields[12])) / ticks
        if int(stat.parent.name) == server:  # its children that have ended, such as autovacuum's
            total += (int(fields[13]) + int(fields[14])) / ticks
    return total


def _started(stamp: Path, i: int) -> int:
    """When job `i` was started; workers append `i moment` lines to one file."""
    deadline = time.monotonic() + 30
    while True:
        if stamp.exists():
            for line in reversed(stamp.read_text(encoding="ascii").splitlines()[-5:]):
                number, moment = line.split()
                if int(number) == i:
                    return int(moment)
        if time.monotonic() > deadline:
            raise CheckFailed(f"job {i} was not started within 30 s")
        time.sleep(0.001)


# --- W10 --------------------------------------------------------------------------------------------------------------


def long_session(side: TenureSide, request: Request) -> Answer:
    """W10: a session that made its plans on empty tables, against a fresh one, after a million rows have come."""
    side.prepare(request.url)
    batch = request.jobs // 10
    rates: dict[str, list[float]] = {"long_lived_rate": [], "fresh_rate": []}
    with _app(request.url) as old:
        for _ in range(10):
            _cycle(old, 10)
        side.tables(request.url).fill_backlog(request.backlog)
        drain.vacuum(request)
        for _ in range(5):
            rates["long_lived_rate"].append(_cycle(old, batch))
            with _app(request.url) as fresh:
                _cycle(fresh, 10)
                rates["fresh_rate"].append(_cycle(fresh, batch))
    _check_counts(side, request.url, 10 * 10 + 5 * (2 * batch + 10), left=request.backlog)
    values = {name: statistics.median(found) for name, found in rates.items()}
    return Answer(ok=True, jobs=10 * batch, checked=True, values=values)


def _cycle(app: Any, batch: int) -> float:
    """Enqueue, claim and settle a batch; gives jobs a second."""
    import tenure

    begun = time.perf_counter()
    app.enqueue_many([app.new_job("noop", payload(i)) for i in range(batch)])
    grants = app.claim(worker="w", queues=["default"], limit=batch)
    app.settle([tenure.Completed(grant.id, grant.token) for grant in grants])
    return batch / (time.perf_counter() - begun)


def _check_counts(side: TenureSide, url: str, done: int, left: int = 0) -> None:
    """Hold the store to what must be in it; the last ends may still be on their way.

    Raises:
        CheckFailed: it is otherwise for ten seconds.
    """
    deadline = time.monotonic() + 10
    while (found := (side.finished(url), side.unfinished(url))) != (done, left):
        if time.monotonic() > deadline:
            raise CheckFailed(f"{found[0]:,} jobs are done and {found[1]:,} left, instead of {done:,} and {left:,}")
        time.sleep(0.05)


def _app(url: str) -> Any:
    import tenure

    return tenure.App(url)


def _noop(app: Any) -> Any:
    async def noop(job: dict[str, Any]) -> None: ...

    return app.job(kind="noop", queue="default")(noop)

"""The workloads that only Tenure is asked for: W1c, W5d, W8, W9, W10 and the footprint."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers import drain
from benchmarks.peers.drain import percentile
from benchmarks.peers.harness import sqlite_path
from benchmarks.protocol import Answer, CheckFailed, Request, Unsupported, payload

if TYPE_CHECKING:
    from benchmarks.tenure_side import TenureSide

SQL = Path(__file__).parent / "sql"
PRIORITIES = 50
REST_SECONDS = 60.0
"""What W8 lets pass once all workers are there. Until then they import, open connections, poll as if each were alone,
and do each thing for the first time on a fresh session, which costs some twenty times what it costs ever after."""
IDLE_SECONDS = 60.0
"""What W8 measures: three heartbeats of each worker, six polls, two elections, one reading of policies, and one sweep
and one counted minute of the leader. Only reaps are longer apart, 260 s in such a fleet: 0.8 a second of them all."""


def workloads(side: TenureSide) -> Mapping[str, Callable[[Request], Answer]]:
    """Each workload with its method."""
    return {
        "W1c": lambda request: concurrent_enqueuers(side, request),
        "W5d": lambda request: future_backlog(side, request),
        "W8": lambda request: idle_workers(side, request),
        "W9": lambda request: mixed_clients(side, request),
        "W10": lambda request: long_session(side, request),
        "footprint": lambda request: footprint(side, request),
    }


# --- counting and filling ---------------------------------------------------------------------------------------------


class Counter:
    """Counts jobs past the front door, so that the asking costs little."""

    def __init__(self, url: str) -> None:
        self._sqlite: sqlite3.Connection | None = None
        if url.startswith("sqlite"):
            self._sqlite = sqlite3.connect(sqlite_path(url), isolation_level=None, timeout=10)
        else:
            import psycopg

            self._postgres = psycopg.connect(url, autocommit=True)

    def count(self, name: str) -> int:
        """Run `sql/tenure_<name>.sql`."""
        text = (SQL / f"tenure_{name}.sql").read_text(encoding="utf-8")
        if self._sqlite is not None:
            soon = str(time.time_ns() // 1000 + 3_600_000_000)
            words = {"job": "tenure_job", "soon": soon, "is_due": "is_due = 1", "is_later": "is_due = 0"}
            return int(self._sqlite.execute(_filled(text, words)).fetchone()[0])
        words = {"job": "tenure.job", "soon": "now() + interval '1 hour'", "is_due": "is_due", "is_later": "NOT is_due"}
        row = self._postgres.execute(_filled(text, words).encode()).fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        """Close the connection."""
        (self._sqlite or self._postgres).close()


def _filled(text: str, words: Mapping[str, str]) -> str:
    for place, word in words.items():
        text = text.replace(f"{{{place}}}", word)
    return text


def fill_history(url: str, jobs: int) -> None:
    """Write finished rows straight into the table."""
    _fill(url, "history", [jobs], {"jobs": jobs, "now": time.time_ns() // 1000 - 3_600_000_000})


def fill_backlog(url: str, jobs: int, *, priorities: int = 1, delay: int = 0) -> None:
    """Write waiting rows straight into the table; `delay` in seconds makes them due later."""
    now, pad = time.time_ns() // 1000, payload(0)["pad"]
    named = {"jobs": jobs, "priorities": priorities, "delay": delay * 1_000_000, "now": now, "pad": pad}
    _fill(url, "backlog", [jobs, priorities, delay], named)


def _fill(url: str, name: str, numbered: list[Any], named: Mapping[str, Any]) -> None:
    if url.startswith("sqlite"):
        text = (SQL / f"tenure_{name}_sqlite.sql").read_text(encoding="utf-8")
        with sqlite3.connect(sqlite_path(url)) as connection:
            connection.execute(text, named)
        connection.close()
        return
    import psycopg

    text = (SQL / f"tenure_{name}_postgres.sql").read_text(encoding="utf-8")
    with psycopg.connect(url, autocommit=True) as server:
        psycopg.RawCursor(server).execute(text.encode(), numbered)


def check_counts(side: TenureSide, url: str, done: int, left: int = 0) -> None:
    """Hold the store to what must be in it. What ended a moment ago may still be on its way there.

    Raises:
        CheckFailed: it is otherwise, for ten seconds.
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


# --- W1c --------------------------------------------------------------------------------------------------------------


def concurrent_enqueuers(side: TenureSide, request: Request) -> Answer:
    """W1c: tasks of one process that enqueue single jobs at the same time; each waits for its own commit."""
    side.prepare(request.url)
    app = _app(request.url)
    noop = _noop(app)

    async def client(numbers: range) -> None:
        for i in numbers:
            await noop.aenqueue(payload(i))

    async def run() -> float:
        await app.ado(_look())
        begun = time.monotonic_ns()
        await asyncio.gather(*(client(range(k, request.jobs, request.clients)) for k in range(request.clients)))
        return (time.monotonic_ns() - begun) / 1e9

    seconds = asyncio.run(run())
    app.close()
    waiting = side.unfinished(request.url)
    if waiting != request.jobs:
        raise CheckFailed(f"{waiting:,} of {request.jobs:,} jobs are in the store")
    return Answer(ok=True, jobs=request.jobs, seconds=seconds, checked=True)


def _look() -> Any:
    from tenure.store.queries import ListQueues

    return ListQueues()


# --- W5d --------------------------------------------------------------------------------------------------------------


def future_backlog(side: TenureSide, request: Request) -> Answer:
    """W5d: jobs due tomorrow at every priority, beside due ones; and what an idle claim over them touches."""
    if request.earlier is None:
        side.prepare(request.url)
        empty = _idle_pages(request.url)
        fill_backlog(request.url, request.backlog, priorities=PRIORITIES, delay=86_400)
    else:
        empty = request.earlier["idle_pages_empty"]
    drain.look_after(request)
    idle = _idle_pages(request.url)
    answer = drain.drain(side, request, before=side.finished(request.url))
    values = {**answer.values, "idle_pages": idle, "idle_pages_empty": empty}
    return Answer(ok=True, jobs=answer.jobs, seconds=answer.seconds, checked=True, values=values)


def _idle_pages(url: str) -> float:
    """Pages that a claim touches which finds nothing: by PostgreSQL's count, by SQLite's cache look-ups."""
    claim = {"worker": "idle", "queues": ["default"], "limit": 100}
    if url.startswith("sqlite"):
        from tenure.store.contract import Claim

        with _app(url) as app:
            app.now()
            app.do(Claim("idle", ["default"], 100))  # type: ignore[arg-type]
            _drop_caches(url)
            before = _page_looks()
            app.do(Claim("idle", ["default"], 100))  # type: ignore[arg-type]
            return max(1, _page_looks() - before)
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        pages = 0
        for _ in range(3):
            row = connection.execute(
                "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) SELECT tenure.exchange(%s)",
                [json.dumps({"claim": claim})],
            ).fetchone()
            assert row is not None
            plan = row[0][0]["Plan"]
            pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return float(pages)


def _drop_caches(url: str) -> None:
    """Write from another connection, so that every page which the next claim touches has to be read again."""
    connection = sqlite3.connect(sqlite_path(url), isolation_level=None, timeout=10)
    connection.execute((SQL / "tenure_touch_sqlite.sql").read_text(encoding="utf-8"))
    connection.close()


def _page_looks() -> int:
    """SQLite counts no page look-ups for Python: pages that this process asked the system for stand in for them."""
    text = Path("/proc/self/io").read_text(encoding="ascii")
    return int(text.split("rchar: ")[1].split("\n")[0]) // 4096


# --- W8 ---------------------------------------------------------------------------------------------------------------


def idle_workers(side: TenureSide, request: Request) -> Answer:
    """W8: what idle workers cost, and how soon one of them starts a job."""
    side.prepare(request.url)
    stamp = Path(request.folder) / "started"
    command = [sys.executable, "-m", "benchmarks.tenure_idle", request.url, str(stamp), "20"]
    processes = [subprocess.Popen(command) for _ in range(max(1, request.clients // 20))]
    try:
        app = _app(request.url)
        noop = _noop(app)
        _wait_for_workers(app, request.clients)
        time.sleep(REST_SECONDS)
        share = _cpu_share([p.pid for p in processes], request.url)
        delays = []
        pause = random.Random(8)
        for i in range(request.jobs or 100):
            time.sleep(pause.uniform(0.01, 0.05))
            noop.enqueue({"i": i})
            returned = time.monotonic_ns()
            delays.append((_started(stamp, i) - returned) / 1e6)
        app.close()
        check_counts(side, request.url, len(delays))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(20)
    return Answer(
        ok=True, jobs=len(delays), checked=True, values={"cpu_share": share, "p99_ms": percentile(sorted(delays), 99)}
    )


def _wait_for_workers(app: Any, number: int) -> None:
    deadline = time.monotonic() + 120
    while len(app.workers()) < number:
        if time.monotonic() > deadline:
            raise CheckFailed(f"only {len(app.workers())} of {number} workers came up in two minutes")
        time.sleep(0.2)


def _cpu_share(pids: list[int], url: str, seconds: float = IDLE_SECONDS) -> float:
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


# --- W9 ---------------------------------------------------------------------------------------------------------------


def mixed_clients(side: TenureSide, request: Request) -> Answer:
    """W9: processes that enqueue, claim, heartbeat and settle at the same time."""
    side.prepare(request.url)
    context = multiprocessing.get_context("spawn")
    with context.Pool(request.clients) as pool:
        parts = pool.starmap(
            _mixed, [(request.url, n, max(1, request.jobs // request.clients)) for n in range(request.clients)]
        )
    claims = sorted(delay for part in parts for delay in part["claims"])
    errors = [error for part in parts for error in part["errors"]]
    for error in errors[:3]:
        sys.stderr.write(f"W9: {error}\n")
    if not errors:
        enqueued, settled = (sum(part[name] for part in parts) for name in ("enqueued", "settled"))
        left, done = side.unfinished(request.url), side.finished(request.url)
        if (left + done, done) != (enqueued, settled):
            raise CheckFailed(
                f"{enqueued:,} jobs were enqueued and {settled:,} settled, but {left:,} are left and {done:,} done"
            )
    values = {
        "errors": float(len(errors)),
        "deadlocks": float(_deadlocks(request.url)),
        "claim_p50_ms": statistics.median(claims) * 1000,
        "claim_p99_ms": percentile(claims, 99) * 1000,
    }
    return Answer(ok=True, jobs=len(claims), checked=True, values=values)


def _mixed(url: str, number: int, turns: int) -> dict[str, Any]:
    import tenure
    from tenure.errors import TenureError

    app = tenure.App(url)
    noop = _noop(app)
    claims: list[float] = []
    errors: list[str] = []
    enqueued = settled = 0
    for turn in range(turns):
        try:
            enqueued += len(noop.enqueue_many([payload(turn * 10 + k) for k in range(10)]))
            begun = time.perf_counter()
            grants = app.claim(worker=f"w{number}", queues=["default"], limit=10)
            claims.append(time.perf_counter() - begun)
            if grants:
                app.heartbeat(grants)
                ended = app.settle([tenure.Completed(grant.id, grant.token) for grant in grants])
                settled += sum(one.state == "succeeded" for one in ended)
        except TenureError as exc:
            errors.append(f"{exc.code}: {exc}")
    app.close()
    return {"claims": claims, "errors": errors, "enqueued": enqueued, "settled": settled}


def _deadlocks(url: str) -> int:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    assert row is not None
    return int(row[0])


# --- W10 --------------------------------------------------------------------------------------------------------------


def long_session(side: TenureSide, request: Request) -> Answer:
    """W10: a session that made its plans on empty tables, against a fresh one, after a million rows have come."""
    side.prepare(request.url)
    old = _app(request.url)
    for _ in range(10):
        _cycle(old, 10)
    fill_backlog(request.url, request.backlog)
    drain.look_after(request)
    rates: dict[str, list[float]] = {"long_lived_rate": [], "fresh_rate": []}
    for _ in range(5):
        rates["long_lived_rate"].append(_cycle(old, 500))
        fresh = _app(request.url)
        _cycle(fresh, 10)
        rates["fresh_rate"].append(_cycle(fresh, 500))
        fresh.close()
    old.close()
    check_counts(side, request.url, 10 * 10 + 5 * (500 + 10 + 500), left=request.backlog)
    return Answer(
        ok=True, jobs=5000, checked=True, values={name: statistics.median(found) for name, found in rates.items()}
    )


def _cycle(app: Any, batch: int) -> float:
    """Enqueue, claim and settle a batch; gives jobs a second."""
    from tenure.model.outcome import Completed

    noop = _noop(app) if "noop" not in app.registry else None
    begun = time.perf_counter()
    app.enqueue_many([app.new_job("noop", payload(i)) for i in range(batch)])
    grants = app.claim(worker="w", queues=["default"], limit=batch)
    app.settle([Completed(grant.id, grant.token) for grant in grants])
    del noop
    return batch / (time.perf_counter() - begun)


# --- footprint --------------------------------------------------------------------------------------------------------


def footprint(side: TenureSide, request: Request) -> Answer:
    """Resident memory of a worker, idle and in a backlog; the time to import, and to show the help."""
    side.prepare(request.url)
    idle = _worker_megabytes(request.url, request.folder, settle_seconds=3.0)
    fill_backlog(request.url, request.backlog)
    busy = _worker_megabytes(request.url, request.folder, settle_seconds=8.0)
    if not side.finished(request.url):
        raise CheckFailed("the worker whose memory was measured has not done a single job of the backlog")
    cache = str(Path(request.folder) / "bytecode")
    values = {
        "idle_mb": idle,
        "backlog_mb": busy,
        "import_ms": _best_ms([sys.executable, "-c", "import tenure; tenure.App"], cache)
        - _best_ms([sys.executable, "-c", "pass"], cache),
        "help_ms": _best_ms([str(Path(sys.executable).with_name("tenure")), "--help"], cache),
    }
    return Answer(ok=True, jobs=request.backlog, checked=True, values=values)


def _worker_megabytes(url: str, folder: str, settle_seconds: float) -> float:
    stamp = Path(folder) / "footprint"
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.tenure_idle", url, str(stamp), "1"])
    try:
        time.sleep(settle_seconds)
        threads = Path(f"/proc/{process.pid}/task").glob("*/children")
        children = [pid for thread in threads for pid in thread.read_text(encoding="ascii").split()]
        return sum(map(_megabytes, [str(process.pid), *children]))  # whoever writes for the worker counts too
    finally:
        process.terminate()
        process.wait(20)


def _megabytes(pid: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _best_ms(command: list[str], cache: str, rounds: int = 7) -> float:
    """The best of some. With bytecode, as an installation has it: the first round writes it to `cache`."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env | {"PYTHONPYCACHEPREFIX": cache})
        found.append((time.perf_counter() - begun) * 1000)
    return min(found)

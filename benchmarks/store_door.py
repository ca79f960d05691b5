"""Speed at the store's door: what the Python store adds to its own statements. `python -m benchmarks.store_door`.

Each round measures the bare side and the store's side one after the other, on tables of its own, and gives their
ratio; the figure is the median over the rounds with its spread. Bare means: the same statements, prepared, over the
fastest driver (libpq; sqlite3), with no request, grant or outcome objects around them. `--backlog` also says what a
claimer of a long backlog holds in memory.
"""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import servers
from benchmarks.peers.harness import sqlite_path
from benchmarks.protocol import payload
from tenure.model.ids import WorkerId, new_job_ids
from tenure.model.job import Grant, NewJob
from tenure.model.outcome import Completed
from tenure.store.contract import Claim, Enqueue, Exchange, Store
from tenure.store.queries import CountJobs

BATCH = 500
WORKER = WorkerId("bench")
_GRANT = re.compile(rb'\["([0-9a-f-]{36})",\s*"[^"]*",\s*(\d+),')


def jobs(number: int) -> list[NewJob]:
    """Jobs as a caller would hand them in."""
    return [NewJob(job_id, "noop", json.dumps(payload(i))) for i, job_id in enumerate(new_job_ids(number))]


def fill(store: Store, number: int) -> float:
    """Enqueue in batches of 1,000; gives the seconds."""
    made = jobs(number)
    begun = time.perf_counter()
    for start in range(0, number, 1000):
        store.do(Enqueue(made[start : start + 1000]))
    return time.perf_counter() - begun


def drain_store(store: Store) -> float:
    """Claim and settle by exchanges through the store; gives the seconds."""
    begun = time.perf_counter()
    grants: list[Grant] = []
    while True:
        done = [Completed(grant.id, grant.token) for grant in grants]
        grants = store.do(Exchange(done, Claim(WORKER, ["default"], BATCH))).grants
        if not grants:
            return time.perf_counter() - begun


def drain_libpq(url: str) -> float:
    """The same function calls, with text cut and pasted."""
    from tenure.store.postgres.link import Link

    link = Link(url, 60)
    claim = '"claim":{"worker":"bench","queues":["default"],"limit":500}'
    done = ""
    begun = time.perf_counter()
    while True:
        outcomes = f'"outcomes":{{"done":[{done}]}},' if done else ""
        found = _GRANT.findall(link.call("exchange", f"{{{outcomes}{claim}}}") or b"")
        if not found:
            break
        done = ",".join(f'{{"i":"{job_id.decode()}","t":{token.decode()}}}' for job_id, token in found)
    seconds = time.perf_counter() - begun
    link.close()
    return seconds


def drain_sqlite3(url: str) -> float:
    """The same statements on a bare connection."""
    folder = Path(sys.modules["tenure.store.sqlite.store"].__file__ or "").parent / "sql"
    pick, claim, complete = (
        (folder / f"{name}.sql").read_text(encoding="utf-8") for name in ("claim_pick", "claim", "complete_plain")
    )
    connection = _bare_sqlite(url)
    done: list[str] = []
    begun = time.perf_counter()
    while True:
        now = time.time_ns() // 1000
        values = {
            "state": "running", "worker": "bench", "lease_until": now + 60_000_000, "now": now, "started_at": now,
        }  # fmt: skip
        connection.execute("BEGIN IMMEDIATE")
        if done:
            connection.execute(complete, {"done": json.dumps(done), "token": 1, "now": now})
        _, rowids, told, _ = connection.execute(pick, {"queue": "default", "limit": BATCH}).fetchone()
        connection.execute(claim, {**values, "rowids": rowids})
        done = [row[2] for row in json.loads(told)]
        connection.execute("COMMIT")
        if not done:
            break
    seconds = time.perf_counter() - begun
    connection.close()
    return seconds


def bulk_copy(url: str, number: int) -> float:
    """COPY of the same rows, a commit each 1,000."""
    import psycopg

    columns = "id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind, profile, payload"
    made = jobs(number)
    with psycopg.connect(url, autocommit=True) as connection:
        begun = time.perf_counter()
        for start in range(0, number, 1000):
            with connection.cursor().copy(f"COPY tenure.job ({columns}) FROM STDIN") as copy:
                for job in made[start : start + 1000]:
                    moment = "2026-01-01 00:00:00+00"
                    copy.write_row(
                        (job.id, 0, moment, moment, moment, 0, 3, "t", "default", "noop", "default", job.payload)
                    )
        return time.perf_counter() - begun


def bulk_sqlite3(url: str, number: int) -> float:
    """executemany of the same rows, a commit each 1,000."""
    folder = Path(sys.modules["tenure.store.sqlite.store"].__file__ or "").parent / "sql"
    insert = (folder / "enqueue_plain.sql").read_text(encoding="utf-8")
    connection = _bare_sqlite(url)
    made = jobs(number)
    begun = time.perf_counter()
    for start in range(0, number, 1000):
        now = time.time_ns() // 1000
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            insert,
            [
                (job.id, job.payload, "noop", "default", "default", 0, 0, 3, now, 1, now, now)
                for job in made[start : start + 1000]
            ],
        )
        connection.execute("COMMIT")
    seconds = time.perf_counter() - begun
    connection.close()
    return seconds


def _bare_sqlite(url: str) -> sqlite3.Connection:
    connection = sqlite3.connect(sqlite_path(url), isolation_level=None, cached_statements=64)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


@contextmanager
def fresh(engine: str, server: servers.Server, folder: Path) -> Iterator[tuple[str, Store]]:
    """An empty, migrated store, and its URL."""
    if engine == "postgres":
        from tenure.store.postgres.store import PostgresStore

        with servers.fresh_database(server, "door") as url:
            postgres = PostgresStore(url)
            postgres.migrate()
            yield url, postgres
            postgres.close()
    else:
        from tenure.store.sqlite.store import SqliteStore

        with tempfile.TemporaryDirectory(dir=folder) as own:
            url = f"sqlite:///{own}/door.db"
            lite = SqliteStore(url)
            lite.migrate()
            yield url, lite
            lite.close()


def compare(
    engine: str,
    server: servers.Server,
    folder: Path,
    rounds: int,
    bare: Callable[[str], float],
    ours: Callable[[Store], float],
    filled: int,
) -> dict[str, Any]:
    """Bare and ours in turns, each on tables of its own."""
    ratios, bare_seconds, our_seconds = [], [], []
    for turn in range(rounds):
        found = {}
        for side in ("bare", "ours") if turn % 2 == 0 else ("ours", "bare"):
            with fresh(engine, server, folder) as (url, store):
                if filled:
                    fill(store, filled)
                found[side] = bare(url) if side == "bare" else ours(store)
        ratios.append(found["bare"] / found["ours"])
        bare_seconds.append(found["bare"])
        our_seconds.append(found["ours"])
    ratio = statistics.median(ratios)
    return {
        "ratio": round(ratio, 3),
        "spread": round((max(ratios) - min(ratios)) / ratio, 2),
        "bare_seconds": round(statistics.median(bare_seconds), 3),
        "our_seconds": round(statistics.median(our_seconds), 3),
    }


def memory(engine: str, server: servers.Server, folder: Path, backlog: int) -> dict[str, Any]:
    """What a process that claims and settles its way through a backlog ever held in memory, and how long it took."""
    with fresh(engine, server, folder) as (url, store):
        for first in range(0, backlog, 10_000):
            fill(store, min(10_000, backlog - first))
        found = subprocess.run(
            [sys.executable, "-m", "benchmarks.store_door", "--drain", url], capture_output=True, text=True, check=True
        )
        [left] = [count.jobs for count in store.do(CountJobs()) if count.state == "succeeded"]
    assert left == backlog, f"{left} of {backlog} jobs were done"
    figures: dict[str, Any] = json.loads(found.stdout)
    return figures


def drain_alone(url: str) -> dict[str, Any]:
    """In a process of its own, which does nothing else: drain the store, and say what that took."""
    store: Store
    if url.startswith("sqlite:"):
        from tenure.store.sqlite.store import SqliteStore

        store = SqliteStore(url)
    else:
        from tenure.store.postgres.store import PostgresStore

        store = PostgresStore(url)
    seconds = drain_store(store)
    store.close()
    # Not getrusage: its peak is handed down through fork and exec, so it would be the parent's.
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0])
    return {"resident_mb": round(peak / 1024, 1), "seconds": round(seconds, 1)}


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description="What the Python store adds to its own statements.")
    parser.add_argument("--rounds", type=int, default=5, help="0 leaves the comparisons out")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument(
        "--backlog", type=int, default=0, help="also claim through this many jobs and say what it holds in memory"
    )
    parser.add_argument("--drain", metavar="URL", help="only claim through what is there, and say what that took")
    arguments = parser.parse_args()
    if arguments.drain:
        print(json.dumps(drain_alone(arguments.drain)))
        return
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        with servers.postgres(folder) as server:
            for engine, drain, bulk in (("postgres", drain_libpq, bulk_copy), ("sqlite", drain_sqlite3, bulk_sqlite3)):
                rest = (engine, server, folder, arguments.rounds)
                with fresh(engine, server, folder):
                    pass  # imports what the bare side looks for
                number = arguments.jobs
                if arguments.rounds:
                    figures[f"{engine} claim(500) + settle(500)"] = compare(*rest, drain, drain_store, number)
                    figures[f"{engine} bulk enqueue"] = compare(
                        *rest, partial(bulk, number=number), partial(fill, number=number), 0
                    )
                if arguments.backlog:
                    figures[f"{engine} backlog of {arguments.backlog}"] = memory(
                        engine, server, folder, arguments.backlog
                    )
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

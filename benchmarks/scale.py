"""`python -m benchmarks.scale`: the figures of docs/operate/scale.md, in some five minutes.

What a database takes in by batch size, what a fleet drains by its number of worker processes, what a million jobs
weigh, how fast retention removes them, and whether a long history slows a claim. Each engine gets a database of its
own; PostgreSQL is started for the run, durable, on a port of its own. Rates of enqueues and times of single jobs are
medians of three.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

import tenure
from benchmarks import machine
from benchmarks.servers import postgres
from tenure.model.outcome import Completed
from tenure.store.contract import Claim, Prune, Settle

BATCHES = (1, 10, 100, 1000)
WORKERS = (1, 2, 4)
ROUNDS = 3
PAYLOAD = {"user_id": 7, "text": "x" * 150}
"""Some 170 bytes."""
SECONDS = 1.0
"""One round of an enqueue."""

app = tenure.App(os.environ.get("SCALE_URL"), actor="scale")


@app.job(queue="scale")
async def nothing(payload: dict[str, Any]) -> None:
    """What every job does."""


def main() -> None:
    """Measure both engines, or the one that is named, and print tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), action="append")
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs of one history and of one drain")
    options = parser.parse_args()
    engines = options.engine or ["sqlite", "postgres"]
    told = {**machine.describe(), "load": f"{os.getloadavg()[0]:.1f} at the start"}
    print("; ".join(f"{name}: {value}" for name, value in told.items()))
    for engine in engines:
        with database(engine) as url:
            print(f"\n### {engine}\n")
            with app.pointed_at(url):
                app.migrate()
                for title, value in measured(url, options.jobs):
                    print(f"| {title} | {value} |", flush=True)


@contextmanager
def database(engine: str) -> Iterator[str]:
    """An empty database on disk."""
    with tempfile.TemporaryDirectory(prefix="tenure-scale-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        if engine == "sqlite":
            yield f"sqlite:///{name}/jobs.db"
            return
        with postgres(Path(name)) as server:
            yield server.url


def measured(url: str, jobs: int) -> Iterator[tuple[str, str]]:
    """Every line of the table."""
    app.queue("scale")
    for batch in BATCHES:
        yield f"enqueue, {batch:,} a call", f"{enqueue_rate(batch):,.0f} jobs/s"
    empty_out()
    yield "claim and end one job, no history", f"{one_job_ms():.1f} ms"
    for count in WORKERS:
        yield f"drain, {count} worker processes", f"{drain_rate(url, count, jobs // 2):,.0f} jobs/s"
    while app.store.do(Prune(older_than_seconds=0, delete_after_seconds=0)).more:
        pass
    compact(url)
    empty = size(url)
    seconds = history(jobs)
    yield "make history: enqueue, claim and end 1,000 a call", f"{jobs / seconds:,.0f} jobs/s"
    yield "size of a million ended jobs, as written", f"{(size(url) - empty) / jobs * 1e6 / 2**20:,.0f} MiB"
    if not url.startswith("sqlite"):
        compact(url)
        yield "the same after VACUUM FULL", f"{(size(url) - empty) / jobs * 1e6 / 2**20:,.0f} MiB"
    yield f"claim and end one job, {jobs:,} jobs of history", f"{one_job_ms():.1f} ms"
    yield "retention: clean", f"{prune_rate(Prune(older_than_seconds=0)):,.0f} jobs/s"
    compact(url)
    yield "size of a million cleaned jobs, compacted", f"{(size(url) - empty) / jobs * 1e6 / 2**20:,.0f} MiB"
    yield "retention: delete", f"{prune_rate(Prune(older_than_seconds=0, delete_after_seconds=0)):,.0f} jobs/s"


def enqueue_rate(batch: int) -> float:
    """Jobs per second of one caller; each call returns after its commit."""

    def once() -> float:
        done, begun = 0, time.perf_counter()
        while (spent := time.perf_counter() - begun) < SECONDS:
            app.enqueue_many([app.new_job("nothing", PAYLOAD) for _ in range(batch)])
            done += batch
        return done / spent

    return median(once)


def one_job_ms() -> float:
    """Milliseconds from a claim to the answer to its end, one job at a time."""

    def once() -> float:
        ids = [app.enqueue("nothing", PAYLOAD).id for _ in range(30)]
        begun = time.perf_counter()
        for _ in ids:
            (grant,) = app.claim(queues="scale")
            app.complete(grant)
        return (time.perf_counter() - begun) / len(ids) * 1000

    return median(once)


def drain_rate(url: str, workers: int, jobs: int) -> float:
    """Jobs per second that worker processes end, from the first claim to the last end. Measured once."""
    ids = fill(jobs)
    command = [sys.executable, "-m", "tenure", "worker", "benchmarks.scale:app", "--drain", "--concurrency", "50"]
    environment = {**os.environ, "SCALE_URL": url}
    children = [
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(workers)
    ]
    for child in children:
        child.wait(120)
    found = [job for job in app.get_many(ids) if job is not None and job.claimed_at and job.finished_at]
    if len(found) != jobs:
        raise RuntimeError(f"{len(found)} of {jobs} jobs were drained")
    first = min(job.claimed_at for job in found if job.claimed_at)
    last = max(job.finished_at for job in found if job.finished_at)
    return jobs / (last - first).total_seconds()


def fill(jobs: int) -> list[str]:
    """Enqueue so many."""
    return [
        one.id
        for start in range(0, jobs, 1000)
        for one in app.enqueue_many([app.new_job("nothing", PAYLOAD) for _ in range(min(1000, jobs - start))])
    ]


def history(jobs: int) -> float:
    """Enqueue, claim and end so many; how long it took."""
    begun = time.perf_counter()
    fill(jobs)
    empty_out()
    return time.perf_counter() - begun


def empty_out() -> None:
    """End everything that waits."""
    while grants := app.store.do(Claim(tenure.WorkerId("scale"), ["scale"], limit=1000)):
        app.store.do(Settle([Completed(grant.id, grant.token) for grant in grants]))


def prune_rate(request: Prune) -> float:
    """Jobs per second that retention handles, batch after batch."""
    done, begun, more = 0, time.perf_counter(), True
    while more:
        pruned = app.store.do(request)
        done, more = done + max(pruned.cleaned, pruned.deleted), pruned.more
    return done / (time.perf_counter() - begun)


def compact(url: str) -> None:
    """Give back what was deleted, so that sizes compare."""
    if not url.startswith("sqlite"):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM FULL tenure.job")


def size(url: str) -> float:
    """Bytes of all tables and indexes."""
    if url.startswith("sqlite"):
        import sqlite3

        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            row = connection.execute(
                "SELECT (SELECT page_count FROM pragma_page_count) - (SELECT freelist_count FROM pragma_freelist_count)"
            ).fetchone()
            return float(row[0] * connection.execute("PRAGMA page_size").fetchone()[0])
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
            "WHERE relnamespace = 'tenure'::regnamespace AND relkind = 'r'"
        ).fetchone()
        assert row is not None
        return float(row[0])


def median(once: Callable[[], float]) -> float:
    """The middle of the rounds."""
    return statistics.median(once() for _ in range(ROUNDS))


if __name__ == "__main__":
    main()

"""What a look at a profile's views costs beside a million jobs: `python -m benchmarks.profile_views --rows 1000000`.

Each profile gets a database of its own, filled by benchmarks/sql/profile_fill_*.sql, on each engine. Every query of a
dashboard runs once to warm up and then eleven times; the median and the slowest are told, as JSON. The goals are
20 ms for a look and 50 ms for health. On PostgreSQL the jobs of another profile come first in the table, as many again:
whoever looks from the table's beginning has all of them to pass.

`--triggers` measures instead what the triggers for `updated_at` cost a claim and a settle, which never set them off,
and `--indexes` what the two indexes cost that a job of a profile enters when it is enqueued: processor time per job
with and without them, in turns, on the same database.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks import machine
from benchmarks.servers import Server, fresh_database, postgres
from tenure import App
from tenure.model.ids import WorkerId, new_job_id
from tenure.model.job import NewJob
from tenure.model.outcome import Completed
from tenure.store.contract import Claim, Enqueue, Settle

SQL: Final = Path(__file__).parent / "sql"
ROUNDS: Final = 11
LOOK_MS: Final = 20.0
HEALTH_MS: Final = 50.0
CACHE_KIB: Final = 65_536
"""What a SQLite connection may keep in memory: a warm look needs the pages of the live jobs to fit."""

Ask = Callable[[str], list[Any]]


@dataclass(frozen=True, slots=True)
class View:
    """A profile's main view, the columns a dashboard asks for, and its words for queued, dead and done."""

    name: str
    id: str
    status: str
    kind: str
    ended: str
    queued: str
    dead: str
    done: str


VIEWS: Final = {
    "agent_queue": View(
        "agent_queue.agent_jobs", "id", "status", "type", "finished_at", "queued", "failed", "succeeded"
    ),
    "automechanica": View(
        "automechanica.tasks", "id", "status", "task_type", "updated_at", "pending", "dead", "completed"
    ),
    "substrate": View(
        "substrate.job_queue", "job_id", "state", "job_kind", "finished_at", "queued", "dead_letter", "succeeded"
    ),
    "orchestrator": View(
        "orchestrator.tasks", "id", "status", "type", "completed_at", "pending", "dead_letter", "completed"
    ),
    "outbox": View("outbox.jobs", "id", "status", "type", "completed_at", "pending", "failed", "completed"),
}


def looks(view: View, name: str, some_id: str) -> dict[str, str]:
    """The queries."""
    rows = f"SELECT * FROM {name} WHERE"
    found = {
        "by state, rare": f"{rows} {view.status} = '{view.dead}' LIMIT 50",
        "by state, common": f"{rows} {view.status} = '{view.done}' LIMIT 50",
        "by state, queued": f"{rows} {view.status} = '{view.queued}' LIMIT 50",
        "by state, newest dead": f"{rows} {view.status} = '{view.dead}' ORDER BY {view.ended} DESC LIMIT 50",
        "by kind": f"{rows} {view.kind} = 'kind3' LIMIT 50",
        "by kind, rare": f"{rows} {view.kind} = 'rare' LIMIT 50",
        "by kind and state": f"{rows} {view.kind} = 'rare' AND {view.status} = '{view.dead}' LIMIT 50",
        "one id": f"{rows} {view.id} = '{some_id}'",
        "oldest queued": f"SELECT {view.id}, {view.kind}, created_at FROM {name} "
        f"WHERE {view.status} = '{view.queued}' ORDER BY created_at LIMIT 1",
    }
    for word in sorted(set(App().profiles.read(view.name.partition(".")[0]).words.values())):
        found[f"state {word}"] = f"{rows} {view.status} = '{word}' LIMIT 50"
    if view.name.startswith("substrate"):
        found["health"] = f"SELECT * FROM {name.replace('job_queue', 'v_queue_health')}"
    return found


def measure(ask: Ask, statement: str) -> tuple[float, float]:
    """Median and slowest, in milliseconds."""
    ask(statement)
    taken = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        ask(statement)
        taken.append((time.perf_counter() - begun) * 1000)
    return statistics.median(taken), max(taken)


@contextmanager
def on_postgres(server: Server, profile: str, rows: int) -> Iterator[Ask]:
    """A filled database."""
    with fresh_database(server, f"views_{profile}") as url:
        with App(url, migrate="always") as app:
            app.migrate()
            before = "orchestrator" if profile == "outbox" else "outbox"
            app.profiles.install(before)
            app.profiles.install(profile)
        with psycopg.connect(url, autocommit=True) as connection:
            for name in (before, profile):
                values = {"rows": rows, "queue": name, "profile": name}
                connection.execute((SQL / "profile_fill_postgres.sql").read_bytes(), values)
            connection.execute("VACUUM ANALYZE tenure.job")
            for _ in range(2):
                connection.execute("SELECT tenure.tally_up(tenure.now())")
            yield lambda statement: connection.execute(statement.encode()).fetchall()


@contextmanager
def on_sqlite(folder: Path, profile: str, rows: int) -> Iterator[Ask]:
    """A filled file."""
    path = folder / f"{profile}.db"
    with App(f"sqlite:///{path}") as app:
        app.profiles.install(profile)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            values = {"rows": rows, "queue": profile, "profile": profile, "now": int(time.time() * 1e6)}
            connection.execute((SQL / "profile_fill_sqlite.sql").read_text(), values)
            app.prune()
            yield lambda statement: connection.execute(statement).fetchall()
    path.unlink()


def run(engine: str, ask: Ask, profile: str) -> list[dict[str, Any]]:
    """Every look at one profile's views."""
    view = VIEWS[profile]
    name = view.name if engine == "postgres" else view.name.replace(".", "_")
    some_id = ask(f"SELECT {view.id} FROM {name} WHERE {view.status} = '{view.done}' LIMIT 1")[0][0]
    found = []
    for what, statement in looks(view, name, some_id).items():
        median, slowest = measure(ask, statement)
        goal = HEALTH_MS if what == "health" else LOOK_MS
        found.append(
            {
                "engine": engine,
                "profile": profile,
                "look": what,
                "median_ms": round(median, 2),
                "slowest_ms": round(slowest, 2),
                "goal_ms": goal,
                "is_met": median <= goal,
            }
        )
        print(f"{engine:9} {profile:14} {what:24} {median:8.2f} ms  {slowest:8.2f} ms", file=sys.stderr)
    return found


BATCH: Final = 100
BATCHES: Final = 20
TURNS: Final = 40
LIVE_INDEXES: Final = ("job_fresh_idx", "job_fresh_kind_idx")
"""The indexes of profiles that a job enters while it is alive."""


def work(app: App, spent: Callable[[], float], profile: str, batches: int = BATCHES) -> dict[str, float]:
    """Processor time per job in microseconds: to enqueue a tenth one by one, the others at once, and to work on all."""
    jobs = [NewJob(new_job_id(), "index", '{"unit": 7}', profile) for _ in range(BATCH * batches)]
    for job in jobs:
        job.key = job.id if profile == "substrate" else None
    singles = len(jobs) // 10
    marks = [spent()]
    for job in jobs[:singles]:
        app.do(Enqueue([job]))
    marks.append(spent())
    app.do(Enqueue(jobs[singles:]))
    marks.append(spent())
    for _ in range(batches):
        grants = app.do(Claim(worker=WorkerId("bench"), queues=[profile], limit=BATCH))
        app.do(Settle([Completed(grant.id, grant.token) for grant in grants]))
    marks.append(spent())
    counts = {"enqueue one": singles, "enqueue many": len(jobs) - singles, "claim and settle": len(jobs)}
    return {
        part: (end - begun) / count * 1e6
        for (part, count), begun, end in zip(counts.items(), marks, marks[1:], strict=False)
    }


def compare(engine: str, url: str, profile: str, drops: list[str], turns: int) -> list[dict[str, Any]]:
    """With what the installation makes and without what `drops` takes away of it, in turns."""
    if engine == "sqlite":
        admin: Any = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    else:
        admin = psycopg.connect(url, autocommit=True)
    with closing(admin), App(url, migrate="always") as app:
        app.migrate()
        app.profiles.install(profile)
        for gate in ("master", "worker", "heartbeat"):
            app.gates.open(f"{profile}.{gate}")
        spent = time.process_time if engine == "sqlite" else lambda: _backends(admin)
        taken: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
        work(app, spent, profile)
        for turn in range(turns):
            for which in ("without", "with") if turn % 2 else ("with", "without"):
                for drop in drops:
                    admin.execute(drop)
                if which == "with":
                    app.profiles.install(profile)
                work(app, spent, profile, batches=1)  # What was planned before has to be planned anew.
                taken[which].append(work(app, spent, profile))
    return [_compared(engine, part, taken) for part in taken["with"][0]]


def _compared(engine: str, part: str, taken: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    medians = {which: statistics.median(times[part] for times in found) for which, found in taken.items()}
    pairs = sorted(b[part] / a[part] for a, b in zip(taken["without"], taken["with"], strict=True))
    return {
        "engine": engine,
        "part": part,
        "us_per_job_without": round(medians["without"], 1),
        "us_per_job_with": round(medians["with"], 1),
        "ratio": round(statistics.median(pairs), 3),
        "middle_half": [round(pairs[len(pairs) // 4], 3), round(pairs[-len(pairs) // 4], 3)],
    }


def _backends(admin: Any) -> float:
    """Processor seconds of the database's other sessions so far. Linux tells; elsewhere the clock has to do."""
    if not Path("/proc/self/schedstat").exists():
        return time.perf_counter()
    rows = admin.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchall()
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for (pid,) in rows) / 1e9


def measure_costs(what: str, engines: list[str], turns: int) -> int:
    """Print JSON; there is no goal to miss."""
    folder = Path(tempfile.mkdtemp(prefix="tenure-costs-"))
    folder.chmod(0o755)
    profile = "substrate" if what == "triggers" else "agent_queue"
    found = []
    try:
        if "sqlite" in engines:
            found += compare("sqlite", f"sqlite:///{folder / 'jobs.db'}", profile, _drops(what, "sqlite"), turns)
        if "postgres" in engines:
            with postgres(folder) as server, fresh_database(server, what) as url:
                found += compare("postgres", url, profile, _drops(what, "postgres"), turns)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"machine": machine.describe(), "load": os.getloadavg()[0], what: found}, indent=1))
    return 0


def _drops(what: str, engine: str) -> list[str]:
    if what == "triggers":
        return ["DROP TRIGGER IF EXISTS tr_job_queue_updated_at" + (" ON tenure.job" if engine == "postgres" else "")]
    room = "tenure." if engine == "postgres" else ""
    return [f"DROP INDEX IF EXISTS {room}{name}" for name in LIVE_INDEXES]


def main() -> int:
    """Measure and print JSON; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--profile", action="append", choices=VIEWS, default=None)
    parser.add_argument("--engine", action="append", choices=["postgres", "sqlite"], default=None)
    parser.add_argument("--triggers", action="store_true", help="what the triggers for updated_at cost")
    parser.add_argument("--indexes", action="store_true", help="what the indexes behind the views cost live jobs")
    parser.add_argument("--turns", type=int, default=TURNS, help="how often --triggers and --indexes compare")
    args = parser.parse_args()
    if args.triggers or args.indexes:
        what = "triggers" if args.triggers else "indexes"
        return measure_costs(what, args.engine or ["sqlite", "postgres"], args.turns)
    folder = Path(tempfile.mkdtemp(prefix="tenure-views-"))
    folder.chmod(0o755)
    found: list[dict[str, Any]] = []
    try:
        for profile in args.profile or VIEWS:
            if "sqlite" in (args.engine or ["sqlite"]):
                with on_sqlite(folder, profile, args.rows) as ask:
                    found += run("sqlite", ask, profile)
        if "postgres" in (args.engine or ["postgres"]):
            with postgres(folder) as server:
                for profile in args.profile or VIEWS:
                    with on_postgres(server, profile, args.rows) as ask:
                        found += run("postgres", ask, profile)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report = {"rows": args.rows, "machine": machine.describe(), "load": os.getloadavg()[0], "looks": found}
    print(json.dumps(report, indent=1))
    return 0 if all(one["is_met"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())

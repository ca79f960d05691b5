"""What a look at a profile's views costs beside a million jobs: `python -m benchmarks.profile_views --rows 1000000`.

Each profile gets a database of its own, filled by benchmarks/sql/profile_fill_*.sql, on each engine. Every query of a
dashboard runs once to warm up and then eleven times; the median and the slowest are told, as JSON. The goals are
20 ms for a look and 50 ms for health.
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
            app.install_profile(profile)
        with psycopg.connect(url, autocommit=True) as connection:
            values = {"rows": rows, "queue": profile, "profile": profile}
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
        app.install_profile(profile)
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


def main() -> int:
    """Measure and print JSON; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--profile", action="append", choices=VIEWS, default=None)
    parser.add_argument("--engine", action="append", choices=["postgres", "sqlite"], default=None)
    args = parser.parse_args()
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

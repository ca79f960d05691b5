"""Where the profiles are tried: a database of either engine with all of them, on a clock that the test moves."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from tenure import App, Grant
from tenure.model.clock import ManualClock
from tests.conformance import engines
from tests.conformance.engines import SteeredClock
from tests.servers import USER, PostgresServer
from tests.waiting import wait_until

PROFILES: Final = ("agent_queue", "automechanica", "substrate", "orchestrator", "outbox")
ROLES: Final = ("producer", "worker", "reader", "operator", "admin")


@dataclass
class Ground:
    """One database: its app, its clock, and plain SQL beside them."""

    engine: str
    app: App
    clock: SteeredClock
    execute: Callable[..., list[dict[str, Any]]]
    """Plain SQL as the database's owner, in a transaction of its own; the rows as dictionaries."""
    open_gates: bool = field(default=False)

    def view(self, name: str) -> str:
        """A profile's view as the engine spells it: `outbox.jobs` is `outbox_jobs` on SQLite."""
        return name if self.engine == "postgres" else name.replace(".", "_")

    def rows(self, view: str, where: str = "true", *values: Any) -> list[dict[str, Any]]:
        """Rows of a profile's view."""
        return self.execute(f"SELECT * FROM {self.view(view)} WHERE {where}", *values)

    def row(self, view: str, where: str = "true", *values: Any) -> dict[str, Any]:
        """The only row."""
        (found,) = self.rows(view, where, *values)
        return found

    def open(self) -> None:
        """Open the gates that `substrate` is installed with."""
        for gate in ("master", "worker", "notify", "heartbeat"):
            self.app.gates.open(f"substrate.{gate}")

    def claim(self, queue: str, worker: str = "host-1-a", **options: Any) -> Grant:
        """The one job that is due."""
        (grant,) = self.app.claim(worker=worker, queues=queue, **options)
        return grant


class PostgresGround:
    """One PostgreSQL database for the whole session, made as new for each test."""

    def __init__(self, server: PostgresServer) -> None:
        scripts = (engines._NO_GRACE, engines._MANUAL_CLOCK)
        server.template("profiles", _prepare(*scripts), begin=engines.migrated_template(server))
        self._server = server
        self.url = server.create_database(template="profiles")
        self._connection = psycopg.connect(self.url, autocommit=True, row_factory=dict_row)
        self._clock = engines.START

    def fresh(self) -> Ground:
        """Empty, with the profiles installed and the clock set back."""
        self._connection.execute("SELECT pristine.restore()")
        self._connection.execute("DELETE FROM automechanica.agent")
        self._connection.execute("DELETE FROM substrate.executor_change")
        # The jobs are gone without their triggers, and TRUNCATE is refused.
        self._connection.execute("SET session_replication_role = replica; TRUNCATE orchestrator.tasks")
        self._connection.execute("RESET session_replication_role")
        self._clock = engines.START
        return Ground("postgres", App(self.url, actor="test"), self, self.execute)

    def execute(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self._connection.execute(statement.replace("?", "%s").encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def login(self, role: str) -> str:
        """The URL of a login that has one of Tenure's roles and nothing else."""
        name = f"profile_{role}"
        self.make_login(name)
        self._connection.execute(f"GRANT tenure_{role} TO {name}".encode())
        return self.url.replace(f"{USER}@", f"{name}@")

    def make_login(self, name: str) -> str:
        """The URL of a login without any right."""
        if not self.execute("SELECT 1 FROM pg_roles WHERE rolname = ?", name):
            self._connection.execute(f"CREATE ROLE {name} LOGIN".encode())
        return self.url.replace(f"{USER}@", f"{name}@")

    def now(self) -> datetime:
        return self._clock

    def advance(self, seconds: float) -> None:
        from datetime import timedelta

        self._clock += timedelta(seconds=seconds)
        self.execute("UPDATE tenure.test_clock SET at = ?", self._clock)

    def close(self) -> None:
        self._connection.close()
        self._server.drop_database(self.url)


def _prepare(*scripts: str) -> Callable[[str], None]:
    def prepare(url: str) -> None:
        with App(url, actor="test") as app:
            for name in PROFILES:
                app.profiles.install(name)
        with psycopg.connect(url, autocommit=True) as connection:
            for script in (*scripts, engines._KEEP_PRISTINE):
                connection.execute(script.encode())
            # The profiles were installed by the real clock, which is ahead of the test's.
            for schema in ("pristine", "tenure"):
                connection.execute(
                    f"UPDATE {schema}.tally_mark SET counted_until = '-infinity', next_until = NULL".encode()
                )

    return prepare


@contextmanager
def sqlite_ground(path: Path) -> Iterator[Ground]:
    """A SQLite file of the test's own. Its clock starts with the machine's: triggers in the file know no other."""
    path.write_bytes(_file_with_profiles())
    clock = ManualClock(datetime.now(UTC))
    with App(engines.sqlite_url(path), clock=clock, actor="test") as app:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.row_factory = sqlite3.Row

        def execute(statement: str, *values: Any) -> list[dict[str, Any]]:
            return [dict(row) for row in connection.execute(statement, values).fetchall()]

        try:
            yield Ground("sqlite", app, clock, execute)
        finally:
            connection.close()


@cache
def _file_with_profiles() -> bytes:
    with engines.scratch_folder() as folder:
        path = folder / "jobs.db"
        with App(engines.sqlite_url(path), actor="test") as app:
            for name in PROFILES:
                app.profiles.install(name)
        return path.read_bytes()


def wait_until_blocked(winner: psycopg.Connection) -> None:
    """Until somebody waits for what `winner` holds. Reads pg_locks: pg_stat_activity stands still in a transaction."""
    statement = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
    wait_until(lambda: (winner.execute(statement.encode()).fetchone() or (0,))[0])

"""`tenure bench`: it measures, refuses where it must, and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tenure import App
from tenure.cli.bench import rounds
from tenure.cli.bench.rounds import KIND, QUEUE, STEPS, Benched, Size, figures
from tests.cli.conftest import Cli
from tests.cli.test_reference import mismatches
from tests.waiting import wait_until

TINY = Size(rounds=2, each=5, at_once=60, bulk=150, wakes=4)
# The audit only grows: that a queue was made stays written down. SQLite keeps its counters of ids.
KEPT = {"audit", "tenure_audit", "sqlite_sequence"}
PATIENCE = 180.0
pytestmark = pytest.mark.timeout(400)  # several processes start in each test, and the machine may be busy
Rows = Callable[[], dict[str, int]]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with a job and a queue of somebody's own in it."""
    found = str(request.getfixturevalue("postgres_url")) if request.param == "postgres" else url
    monkeypatch.setenv("TENURE_URL", found)
    with App(found, actor="test") as app:
        app.queues.set("mail", max_attempts=2)
        app.enqueue("welcome", queue="mail")
    return found


@pytest.fixture
def rows(database: str) -> Rows:
    """How many rows each table has."""
    return lambda: _sqlite_rows(database) if database.startswith("sqlite") else _postgres_rows(database)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.cli.bench.command.QUICK", TINY)


@pytest.mark.usefixtures("tiny")
def test_it_measures_everything_and_leaves_nothing_behind(cli: Cli, rows: Rows) -> None:
    before = rows()

    found = cli("bench", "--quick", "--json")

    assert found.code == 0, found.err
    assert list(mismatches(found.json, Benched, "bench")) == []
    assert [one["name"] for one in found.json["figures"]] == list(STEPS)
    for one in found.json["figures"]:
        assert one["median"] > 0 or (one["name"].startswith("wake") and one["median"] == 0), one
        assert len(one["samples"]) == 2
    assert found.json["removed"] >= 2 * (150 + 4)
    assert rows() == before


@pytest.mark.usefixtures("tiny")
def test_a_figure_that_is_not_trusted_is_marked(cli: Cli, database: str) -> None:
    found = cli("bench", "--quick", "--rounds", "1")

    assert found.code == 0, found.err
    figure = [line.split("\t")[1] for line in found.out.splitlines()[2:]]
    assert len(figure) == len(STEPS)
    assert all(one.startswith("~") for one in figure)
    assert "not to be trusted" in found.err


@pytest.mark.parametrize(("rates", "is_trusted"), [((100.0, 110.0, 129.0), True), ((100.0, 110.0, 150.0), False)])
def test_a_spread_over_30_percent_is_not_trusted(rates: tuple[float, ...], is_trusted: bool) -> None:
    rounds = [dict.fromkeys(STEPS, 50.0) | {"drain": rate, "enqueue_each": rate} for rate in rates]

    drawn = {one.name: one for one in figures(rounds)}

    assert (drawn["drain"].median, drawn["drain"].is_trusted) == (110.0, is_trusted)
    assert drawn["enqueue_each"].of_bare == 2.2
    assert drawn["drain"].of_bare is None


def test_jobs_in_its_queue_make_it_refuse_and_clean_takes_them_away(cli: Cli, database: str, rows: Rows) -> None:
    before = rows()
    with App(database) as app:
        app.queue(QUEUE)
        app.enqueue(KIND, {"i": 1}, queue=QUEUE)

    refused = cli("bench", "--quick", "--json")
    assert refused.code != 0
    assert "tenure bench --clean" in refused.error["message"]

    assert cli("bench", "--clean", "--json").json["removed"] == 1
    assert rows() == before


def test_a_queue_of_that_name_with_other_jobs_is_never_taken_away(cli: Cli, database: str, rows: Rows) -> None:
    with App(database) as app:
        app.queue(QUEUE)
        app.enqueue("mine", queue=QUEUE)
    before = rows()

    assert cli("bench", "--quick", "--json").error["code"] == "illegal_move"
    assert cli("bench", "--clean", "--json").error["code"] == "illegal_move"
    assert rows() == before


@pytest.mark.parametrize("gate", ["master", "worker", "default.worker"])
def test_a_closed_gate_makes_it_refuse(cli: Cli, database: str, rows: Rows, gate: str) -> None:
    with App(database) as app:
        app.gates.close(gate)
    before = rows()

    found = cli("bench", "--quick", "--json")

    assert (found.code, found.error["code"]) == (7, "gate_closed")
    assert rows() == before


@pytest.mark.postgres
def test_a_login_that_could_not_clean_up_is_refused_before_anything_is_put_there(cli: Cli, postgres_url: str) -> None:
    with App(postgres_url) as app:
        app.migrate()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE bench_poor LOGIN PASSWORD 'poor'")
        connection.execute("GRANT tenure_admin TO bench_poor")
    try:
        url = re.sub("//[^@]*@", "//bench_poor:poor@", postgres_url)
        before = _postgres_rows(postgres_url)

        found = cli("bench", "--quick", "--json", "--url", url)

        assert found.error["code"] == "access_denied"
        assert "tenure migrate" in found.error["message"]
        assert _postgres_rows(postgres_url) == before
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("DROP ROLE bench_poor")


@pytest.mark.parametrize(("number", "state"), [(signal.SIGINT, "queued"), (signal.SIGTERM, "succeeded")])
def test_a_signal_in_the_middle_leaves_nothing_behind(
    database: str, rows: Rows, number: signal.Signals, state: str
) -> None:
    before = rows()
    command = [sys.executable, "-m", "tenure.cli.main", "bench", "--quick", "--url", database]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            with App(database) as app:
                wait_until(lambda: sum(one.jobs for one in app.queues.counts(queue=QUEUE, state=state)) > 1, PATIENCE)
            process.send_signal(number)
            _, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()

    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert rows() == before


def test_a_worker_whose_bench_was_killed_ends_by_itself(database: str) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "tenure.cli.bench.worker", "mail", KIND, "0"],
        env={**os.environ, "TENURE_URL": database},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdin is not None
    try:
        assert worker.stdout.readline() == "ready\n"

        worker.stdin.close()  # what the system does when the other end is gone

        assert worker.wait(PATIENCE) == 0
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()


def test_the_bare_engine_is_measured_beside_the_file_and_leaves_none(app: App, tmp_path: Path) -> None:
    from tenure.observe.timing import bare_seconds

    before = sorted(path.name for path in tmp_path.iterdir())

    assert bare_seconds(app.store, "commit", times=3, seconds=5) > 0
    assert bare_seconds(app.store, "round_trip", times=3, seconds=5) > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_relative_url_means_the_same_file_to_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert rounds._absolute("sqlite:///jobs.db") == f"sqlite:///{tmp_path / 'jobs.db'}"
    assert rounds._absolute("postgresql://host/x") == "postgresql://host/x"


def _sqlite_rows(url: str) -> dict[str, int]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            table: connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
            for table in tables
            if table not in KEPT
        }
    finally:
        connection.close()


def _postgres_rows(url: str) -> dict[str, int]:
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'tenure'").fetchall()
        return dict(_counted(connection, [row[0] for row in tables if row[0] not in KEPT]))


def _counted(connection: psycopg.Connection, tables: list[str]) -> Iterator[tuple[str, int]]:
    for table in tables:
        row = connection.execute(sql.SQL("SELECT count(*) FROM tenure.{}").format(sql.Identifier(table))).fetchone()
        assert row is not None
        yield table, row[0]

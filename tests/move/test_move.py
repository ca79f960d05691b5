"""`tenure move`: everything that is in one database is in the other, whatever ends the mover on the way."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tenure
from tenure import errors
from tenure.client.connect import open_store
from tenure.model.url import shown_url
from tenure.move import mover
from tenure.move.plan import LEFT_OUT, ONE_ENGINE_ONLY, plan
from tenure.observe.doctor import examine
from tenure.store.summary import Inspect
from tests.conformance import rows
from tests.move.conftest import Make
from tests.move.filling import fill, filled_app

LONG = os.environ.get("TENURE_LONG") == "1"
JOBS = int(os.environ.get("TENURE_MOVE_JOBS", "100000" if LONG else "1500"))
"""TENURE_MOVE_JOBS sets another number: `TENURE_LONG=1 TENURE_MOVE_JOBS=1000000 pytest tests/move -k killed -s`."""
POINTS = [
    ("before_batch_commit", 1),
    *[("before_batch_commit", max(3, JOBS // 8_000))] * 6,
    ("after_batch", 45),
    ("compare", 5),
    ("compare", 20),
]
CARRIED = {
    "job", "attempt", "dead_letter", "effect", "step", "signal", "job_group", "schedule", "workflow", "task",
    "escalation", "budget", "spend", "limiter", "memo", "approval", "vote", "stream", "stream_chunk", "memory",
    "agent_event", "metric", "metric_total", "audit", "audit_seal", "api_token",
}  # fmt: skip
"""What must never be left out, whatever reason is given."""
MOST_KIB = 200 * 1024
"""What a mover may hold in memory, however many rows there are and however large they are."""
ROOT = Path(__file__).parents[2]


def test_every_table_is_moved_or_left_out_for_a_reason(empty: Make) -> None:
    shapes = {}
    for engine in ("sqlite", "postgres"):
        with closing(open_store(empty(engine), "always")) as store, closing(store.tables()) as tables:
            shapes[engine] = tables.tables()

    planned = plan(shapes["sqlite"], shapes["postgres"])  # raises for a table or column that it knows no reason for

    known = {shape.name for found in shapes.values() for shape in found}
    assert {table.name for table in planned} == known - LEFT_OUT.keys()
    assert {table.name for table in planned} == _written_tables() - LEFT_OUT.keys()
    assert {table.name for table in planned} >= CARRIED
    assert set(ONE_ENGINE_ONLY) <= known
    assert all(LEFT_OUT.values())


@pytest.mark.timeout(4 * 3600 if LONG else 300)
def test_all_that_the_product_wrote_arrives_though_the_mover_is_killed(source: str, destination: str) -> None:
    fill(source, JOBS)
    assert not _empty_tables(source)
    begun = time.monotonic()

    runs = [_run(source, destination, point, skip) for point, skip in POINTS]
    last = _run(source, destination, "never", 0)

    assert [run.returncode for run in runs] == [-9] * len(POINTS), [run.stderr for run in runs]
    assert last.returncode == 0, last.stderr
    peaks = [int(run.stdout.split()[1]) for run in [*runs, last] if run.stdout]
    assert len(peaks) == 4
    print(f"{JOBS:,} jobs, {last.stdout.split()[0]} rows: {time.monotonic() - begun:.0f} s, {max(peaks):,} KiB")
    assert max(peaks) < MOST_KIB
    assert _differences(source, destination) == []
    assert (_phases(source), _phases(destination)) == (["moved"], ["done"])
    with filled_app(source) as app:
        expected = {
            "held": next(iter(app.jobs(state="running"))),
            "events": app.store.do(Inspect()).last_event,
        }
    with filled_app(destination) as app:
        _goes_on(app, expected)


def test_the_tasks_of_a_profile_are_seen_in_the_destination(source: str, destination: str) -> None:
    """On PostgreSQL they are a table of the profile's own, which is filled from the jobs."""
    with tenure.App(source, migrate="always") as app:
        app.profiles.install("orchestrator")
        made = [app.enqueue("build", {"n": n}, queue="orchestrator", key=f"k{n}").id for n in range(3)]

    moved = mover.move(source, destination, actor="me")

    assert moved.profiles == ["orchestrator"]
    question = "SELECT id FROM {} ORDER BY id"
    if destination.startswith("sqlite"):
        with _file(destination) as file:
            found = [str(row[0]) for row in file.execute(question.format("orchestrator_tasks"))]
    else:
        with psycopg.connect(destination) as server:
            found = [str(row[0]) for row in server.execute(question.format("orchestrator.tasks").encode())]
    assert found == sorted(made)


@pytest.mark.slow
def test_rows_of_any_size_are_moved_in_little_memory(source: str, destination: str) -> None:
    """Two hundred payloads of a megabyte each: none of them waits in memory for the others."""
    with tenure.App(source, migrate="always") as app:
        for number in range(200):
            app.enqueue("large", {"n": number, "text": "x" * 1_000_000})

    done = _run(source, destination, "never", 0)

    assert done.returncode == 0, done.stderr
    rows, peak = map(int, done.stdout.split())
    assert rows > 200
    assert peak < MOST_KIB, f"{peak:,} KiB"


@pytest.mark.slow
def test_the_server_needs_no_temporary_space_to_read_a_table_in_order(empty: Make) -> None:
    """Freshly filled tables have no statistics: a server sorted them, in files as large as the table."""
    source, destination = empty("sqlite"), empty("postgres")
    with tenure.App(source, migrate="always") as app:
        app.enqueue_many(app.new_job("plain", {"n": n, "text": "x" * 500}) for n in range(20_000))

    mover.move(source, destination, actor="me")
    mover.move(destination, empty("sqlite"), actor="me")

    with psycopg.connect(destination) as server:
        asked = "SELECT temp_files FROM pg_stat_database WHERE datname = current_database()"
        assert server.execute(asked).fetchone() == (0,)


def _goes_on(app: tenure.App, expected: dict[str, Any]) -> None:
    """What was under way in the source goes on here."""
    assert not app.access.verify_audit().faults
    assert app.memory.search("BX-4471")
    assert app.enqueue("plain", {"n": 1}, key="plain-1", queue="mail").duplicate is False  # scope active: it has ended
    held = app.get(expected["held"].id)
    assert held.token == expected["held"].token
    assert app.complete((held.id, held.token)).job_id == held.id
    app.signal("told:bob", {"eur": 1})
    (bob,) = [job for job in app.jobs(kind="parent", limit=10) if job.payload == "bob"]
    app.queues.resume("memory")
    from tenure.testing import drain

    drain(app, raise_errors=False)
    assert app.get(bob.id).result["told"] == {"eur": 1}
    assert app.store.do(Inspect()).last_event > expected["events"]
    assert [row.name for row in app.profiles.installed()] == ["automechanica", "substrate"]


def test_jobs_that_are_acknowledged_during_a_move_are_in_the_destination(source: str, destination: str) -> None:
    accepted: list[str] = []
    refused: list[errors.TenureError] = []
    begun = threading.Event()
    with tenure.App(source) as app:
        app.queues.set("mail")

        def produce() -> None:
            while not refused:
                try:
                    accepted.append(app.enqueue("plain", {"n": len(accepted)}, queue="mail").id)
                except errors.TenureError as exc:
                    refused.append(exc)
                begun.set()

        producer = threading.Thread(target=produce)
        producer.start()
        begun.wait()
        moved = mover.move(source, destination, actor="me")
        producer.join()
        with pytest.raises(errors.StoreMoved, match="Point this process at that database"):
            app.queues.set("other")

    assert isinstance(refused[0], errors.GateClosed | errors.StoreMoved)
    with tenure.App(destination) as app:
        assert all(app.get_many(accepted))
        app.enqueue("plain", {}, queue="mail")  # the gate is open there
    assert {table.table: table.rows for table in moved.tables}["job"] == len(accepted)


def test_a_move_waits_for_held_jobs_and_gives_up_without_harm(source: str, destination: str) -> None:
    with tenure.App(source) as app:
        app.enqueue("plain", {"n": 1})
        (grant,) = app.claim(worker="w", queues=["default"], lease_seconds=600)

        with pytest.raises(errors.IllegalMove, match="Workers still hold 1 job of"):
            mover.move(source, destination, wait_seconds=0, actor="me")

        left = app.enqueue("plain", {"n": 2})
        app.complete(grant)
        mover.move(source, destination, wait_seconds=0, actor="me")
        with pytest.raises(errors.StoreMoved):
            app.cancel(left.id)
    with tenure.App(destination) as app:
        assert {count.state: count.jobs for count in app.queues.counts()} == {"queued": 1, "succeeded": 1}


def test_what_a_move_waits_for_is_told_by_it_and_by_doctor(source: str, destination: str) -> None:
    told: list[str] = []
    with tenure.App(source) as app:
        app.enqueue("plain", {"n": 1})
        (grant,) = app.claim(worker="w", queues=["default"], lease_seconds=600)

        def tell(what: str, by: int) -> None:
            if what.startswith("waiting") and not told:
                told.extend([what, *_moves(source)])
                app.complete(grant)

        assert _moves(source) == []
        mover.move(source, destination, actor="me", tell=tell)

    there = shown_url(destination)
    assert told == [
        "waiting for 1 held job to end",
        f"warn: a move to {there} is under way or was cut, and until its end no new job starts here",
    ]
    assert _moves(source) == [f"wrong: everything was moved to {there}, and no more writes are taken here"]
    assert _moves(destination) == []
    mover.reopen(source, actor="me")
    assert _moves(source) == []


def test_doctor_tells_of_a_move_that_was_cut_on_both_sides(source: str, destination: str) -> None:
    with tenure.App(source) as app:
        app.enqueue("plain", {"n": 1})
    assert _run(source, destination, "compare", 0).returncode == -9

    here, there = shown_url(source), shown_url(destination)
    assert _moves(source) == [
        f"warn: a move to {there} is under way or was cut, and until its end no writes are taken here"
    ]
    assert _moves(destination) == [
        f"warn: a move from {here} fills this database or was cut, and no other writes are taken until its end"
    ]


def test_a_late_worker_is_refused_by_the_source_and_settles_in_the_destination(source: str, destination: str) -> None:
    with tenure.App(source) as app:
        job = app.enqueue("plain", {"n": 1})
        (grant,) = app.claim(worker="w", queues=["default"], lease_seconds=600)

        moved = mover.move(source, destination, leases="carry", actor="me")

        assert moved.held == 1
        for late in (lambda: app.complete(grant), lambda: app.heartbeat([grant]), lambda: app.release(grant)):
            with pytest.raises(errors.StoreMoved, match="takes no more writes"):
                late()
    with tenure.App(destination) as app:
        app.complete(grant, result={"n": 1})
        assert app.result(job.id) == {"n": 1}


def test_a_source_is_reopened_and_takes_writes_again(source: str, destination: str) -> None:
    with tenure.App(source) as app:
        app.enqueue("plain", {"n": 1})
        mover.move(source, destination, actor="me")
        with pytest.raises(errors.IllegalMove, match="was moved to"):
            mover.move(source, destination, actor="me")

        mover.reopen(source, actor="me")

        app.enqueue("plain", {"n": 2})
        with pytest.raises(errors.IllegalMove, match="nothing to reopen"):
            mover.reopen(source, actor="me")
        with pytest.raises(errors.IllegalMove, match="is not empty: it has rows, "):
            mover.move(source, destination, actor="me")
        app.enqueue("plain", {"n": 3})


def test_a_destination_that_is_being_filled_refuses_others(source: str, destination: str, empty: Make) -> None:
    with tenure.App(source) as app:
        app.enqueue("plain", {"n": 1})
    assert _run(source, destination, "compare", 0).returncode == -9

    with tenure.App(destination) as app, pytest.raises(errors.StoreMoved, match="is being filled from"):
        app.enqueue("plain", {"n": 2})
    third = empty("sqlite")
    with tenure.App(third) as app:
        app.enqueue("plain", {"n": 3})
    with pytest.raises(errors.IllegalMove, match="is being filled by a move from"):
        mover.move(third, destination, actor="me")
    with pytest.raises(errors.IllegalMove, match="is being moved to"):
        mover.move(source, empty("sqlite"), actor="me")
    with pytest.raises(errors.IllegalMove, match="is itself the destination of a move"):
        mover.move(destination, empty("sqlite"), actor="me")
    assert mover.move(source, destination, actor="me").rows


def test_a_row_that_differs_is_found(source: str, destination: str) -> None:
    with tenure.App(source) as app:
        app.enqueue("plain", {"n": 1})
    assert _run(source, destination, "compare", 0).returncode == -9
    _change_behind_the_back(destination)

    with pytest.raises(errors.IllegalMove, match="Table 'job' is not the same on both sides: 1 rows"):
        mover.move(source, destination, actor="me")

    with tenure.App(destination) as app, pytest.raises(errors.StoreMoved):
        app.enqueue("plain", {"n": 2})


def test_a_lost_connection_is_told_and_the_next_run_goes_on(source: str, destination: str) -> None:
    with tenure.App(source) as app:
        app.enqueue_many([("plain", {"n": n}) for n in range(50)])
    server = destination if destination.startswith("postgres") else source

    def cut(what: str, _by: int) -> None:
        if what == "copying job":
            with psycopg.connect(server, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure move'"
                )

    with pytest.raises(errors.StoreUnavailable):
        mover.move(source, destination, actor="me", tell=cut)

    assert {one.table: one.rows for one in mover.move(source, destination, actor="me").tables}["job"] == 50


def test_a_newer_schema_and_a_database_without_one_are_refused(source: str, destination: str) -> None:
    with pytest.raises(errors.OperatorError, match=r"nothing to move|There is no database file"):
        mover.move(source, destination, actor="me")
    with tenure.App(source) as app:
        app.enqueue("plain", {"n": 1})
    with closing(open_store(destination, "always")):
        pass
    _age(destination)

    with pytest.raises(errors.SchemaAhead):
        mover.move(source, destination, actor="me")
    with tenure.App(source) as app:
        app.enqueue("plain", {"n": 2})


def test_a_login_without_the_owners_rights_is_refused(empty: Make) -> None:
    server, file = empty("postgres"), empty("sqlite")
    with tenure.App(server) as app:
        app.enqueue("plain", {"n": 1})
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS stranger")
        connection.execute("CREATE ROLE stranger LOGIN")
        connection.execute("GRANT tenure_admin TO stranger")

    with pytest.raises(errors.AccessDenied, match="Use the login that runs `tenure migrate`"):
        mover.move(server.replace("tenure_test@", "stranger@"), file, actor="me")


def _written_tables() -> set[str]:
    """Every table that the schemas' files create."""
    files = (ROOT / "src" / "tenure" / "store").glob("*/sql/schema*.sql")
    found = (re.findall(r"^CREATE TABLE tenure[._](\w+)", path.read_text(), re.MULTILINE) for path in files)
    return {name for names in found for name in names}


def _run(source: str, destination: str, point: str, skip: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.move.children.mover", source, destination, point, str(skip)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    seconds = 3600 if LONG else 300
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )


def _moves(url: str) -> list[str]:
    """What doctor says of moves."""
    with closing(open_store(url, "never")) as store:
        return [f"{one.status}: {one.says}" for one in examine(store, url) if one.name == "moved"]


def _phases(url: str) -> list[str]:
    with closing(open_store(url, "never")) as store, closing(store.tables()) as tables:
        return [line.phase for line in tables.moves()]


def _empty_tables(url: str) -> list[str]:
    with closing(open_store(url, "never")) as store, closing(store.tables()) as tables:
        shapes = tables.tables()
        return [table.name for table in plan(shapes, shapes) if not tables.count(table.name)]


def _differences(source: str, destination: str) -> list[str]:
    """Read by the tests' own eyes, column by column. The end of a move itself writes to gates and audit."""
    file, server = (source, destination) if source.startswith("sqlite") else (destination, source)
    with _file(file) as ours, psycopg.connect(server) as theirs:
        rows.read_plainly(theirs)
        found = rows.copy_differences(ours, theirs)
        return [line for line in found if not line.startswith(("gate ", "audit "))]


def _change_behind_the_back(url: str) -> None:
    if url.startswith("sqlite"):
        with _file(url) as file:
            file.execute("DROP TRIGGER tenure_move_job_update")
            file.execute("UPDATE tenure_job SET priority = priority + 1")
    else:
        with psycopg.connect(url) as server:
            server.execute("ALTER TABLE tenure.job DISABLE TRIGGER tenure_move")
            server.execute("UPDATE tenure.job SET priority = priority + 1")
            server.execute("ALTER TABLE tenure.job ENABLE TRIGGER tenure_move")


def _age(url: str) -> None:
    """As a later version would leave it."""
    if url.startswith("sqlite"):
        with _file(url) as file:
            file.execute("INSERT INTO tenure_migration VALUES (99, '0099_later', 'x', 0, 99)")
    else:
        with psycopg.connect(url) as server:
            server.execute("INSERT INTO tenure.migration VALUES (99, '0099_later', 'x', DEFAULT, 99)")


@contextmanager
def _file(url: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        yield connection

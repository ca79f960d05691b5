"""A plain INSERT on SQLite, and the id of what it made or found: by the standard library and by the sqlite3 command."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from tenure import App
from tests.conformance.engines import scratch_folder, sqlite_url
from tests.profiles.ground import PROFILES
from tests.profiles.test_views import MAIN

INSERTS: Final = {
    "agent_queue": ("type, payload", "'made', '{}'"),
    "automechanica": ("agent_name, task_type", "'Agent', 'made'"),
    "substrate": ("job_kind, idempotency_key, actor", "'made', 'key-7', 'ada'"),
    "orchestrator": ("type, idempotency_key", "'made', 'key-7'"),
    "outbox": ("type, idempotency_key", "'made', 'key-7'"),
}
KEYED: Final = ("substrate", "orchestrator", "outbox")


@pytest.fixture
def path() -> Iterator[Path]:
    with scratch_folder() as folder:
        with App(sqlite_url(folder / "jobs.db")) as app:
            for name in PROFILES:
                app.profiles.install(name)
            app.gates.open("substrate.master")
        yield folder / "jobs.db"


def insert(name: str, returning: str) -> str:
    columns, values = INSERTS[name]
    return f"INSERT INTO {view(name)} ({columns}) VALUES ({values}) RETURNING {returning}"


def view(name: str) -> str:
    return MAIN[name].view.replace(".", "_")


def inserted(name: str) -> str:
    return f"(SELECT {MAIN[name].id} FROM {view(name)}_inserted)"


@pytest.mark.parametrize("name", PROFILES)
def test_returning_shows_the_new_id_in_one_statement(path: Path, name: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        plain = connection.execute(insert(name, MAIN[name].id)).fetchall()
        if name in KEYED:
            connection.execute("DELETE FROM tenure_job")

        ((told,),) = connection.execute(insert(name, inserted(name))).fetchall()

        assert plain == [(None,)]  # Why there is a view for it.
        found = connection.execute(f"SELECT {MAIN[name].kind} FROM {view(name)} WHERE {MAIN[name].id} = ?", [told])
        assert found.fetchall() == [("made",)]


@pytest.mark.parametrize("name", KEYED)
def test_returning_shows_the_existing_id_for_a_duplicate(path: Path, name: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        flags = f"{inserted(name)}, (SELECT duplicate FROM {view(name)}_inserted)"
        ((first, was_new),) = connection.execute(insert(name, flags)).fetchall()

        ((again, is_duplicate),) = connection.execute(insert(name, flags)).fetchall()

        assert again == first
        assert (was_new, is_duplicate) == (0, 1)
        assert connection.execute(f"SELECT count(*) FROM {view(name)}").fetchone() == (1,)


def test_a_select_within_the_transaction_shows_the_same(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:  # The standard library begins a transaction before an INSERT.
        connection.execute("INSERT INTO outbox_jobs (type, idempotency_key) VALUES ('made', 'key-7')")
        ((told, duplicate),) = connection.execute("SELECT id, duplicate FROM outbox_jobs_inserted").fetchall()
        connection.commit()

        assert connection.execute("SELECT id FROM outbox_jobs").fetchall() == [(told,)]
        assert duplicate == 0


def test_nobody_elses_insert_comes_between_within_a_transaction(path: Path) -> None:
    with closing(sqlite3.connect(path)) as mine, closing(sqlite3.connect(path, timeout=0)) as other:
        mine.execute("INSERT INTO outbox_jobs (type) VALUES ('mine')")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("INSERT INTO outbox_jobs (type) VALUES ('theirs')")

        assert mine.execute("SELECT type FROM outbox_jobs_inserted").fetchall() == [("mine",)]


def test_an_insert_that_is_rolled_back_leaves_the_id_of_the_one_before(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO outbox_jobs (type) VALUES ('kept')")
        connection.commit()
        connection.execute("INSERT INTO outbox_jobs (type) VALUES ('gone')")
        connection.rollback()

        assert connection.execute("SELECT type FROM outbox_jobs_inserted").fetchall() == [("kept",)]


def test_an_id_of_ones_own_is_what_was_inserted_and_twice_the_same(path: Path) -> None:
    given = "0192F0C1-2B3C-7DEF-8123-456789ABCDEF"
    statement = f"INSERT INTO outbox_jobs (id, type) VALUES ('{given}', 'made') RETURNING {inserted('outbox')}"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        told = [connection.execute(statement).fetchone() for _ in range(2)]

        assert told == [(given.lower(),)] * 2
        assert connection.execute("SELECT count(*) FROM outbox_jobs").fetchone() == (1,)


def test_of_several_rows_each_has_its_id_if_the_subquery_names_the_row(path: Path) -> None:
    """A subquery that names nothing of the row is looked up once, and would show the first id for all of them."""
    statement = (
        "INSERT INTO outbox_jobs (type, idempotency_key) VALUES ('a', '1'), ('b', '2'), ('a', '1') "
        "RETURNING type, (SELECT i.id FROM outbox_jobs_inserted AS i WHERE i.type = outbox_jobs.type)"
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        told = connection.execute(statement).fetchall()

        made = dict(connection.execute("SELECT type, id FROM outbox_jobs").fetchall())
        assert told == [("a", made["a"]), ("b", made["b"]), ("a", made["a"])]


def test_the_profiles_keep_their_last_insert_apart(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        told = {name: connection.execute(insert(name, inserted(name))).fetchone()[0] for name in PROFILES}

        for name in PROFILES:
            assert connection.execute(f"SELECT * FROM {view(name)}_inserted").fetchall() == [(told[name], "made", 0)]


def test_a_queue_that_asks_for_events_tells_of_new_jobs_only(path: Path) -> None:
    with App(sqlite_url(path)) as app, closing(sqlite3.connect(path, isolation_level=None)) as connection:
        app.queues.set("outbox", events=True)
        ((told,), _again) = (connection.execute(insert("outbox", inserted("outbox"))).fetchone() for _ in range(2))

        assert [(event.kind, event.job_id) for event in app.events()] == [("queued", told)]


@pytest.mark.parametrize("name", KEYED)
def test_the_sqlite3_command_shows_it_too(path: Path, name: str) -> None:
    command = shutil.which("sqlite3")
    if command is None:
        pytest.skip("the command sqlite3 is not installed")
    script = f"{insert(name, inserted(name))};\n" * 2

    done = subprocess.run([command, str(path)], input=script, capture_output=True, text=True, timeout=60, check=True)

    first, again = done.stdout.split()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(f"SELECT {MAIN[name].id} FROM {view(name)}").fetchall() == [(first,)]
    assert again == first

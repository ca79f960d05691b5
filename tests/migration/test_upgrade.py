"""A database of version 1 becomes one of version 2, by a program of version 2 that a release script really made.

Version 1 is this checkout. Version 2 is a copy of it in which version 1 was released, and a column, a table and a
function were added since; its programs run as processes of their own.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tenure
from tenure.errors import InternalError, SchemaAhead, SchemaError
from tenure.store.migrations import Migration, check_applied, missing, read_migrations
from tenure.store.postgres.sql import statement
from tests.migration.catalog import read_catalog
from tests.packaging.checkout import Checkout
from tests.servers import PostgresServer, wheel_bin_path
from tests.waiting import wait_until

STORE = "src/tenure/store"
CHANGES = {
    "sqlite": """\
-- A made-up second version.
-- compatible from: 1
ALTER TABLE tenure_queue ADD COLUMN region TEXT;
CREATE TABLE tenure_note (
    id INTEGER PRIMARY KEY,
    body TEXT NOT NULL
) STRICT;
""",
    "postgres": """\
-- A made-up second version.
-- compatible from: 1
ALTER TABLE tenure.queue ADD COLUMN region text;
CREATE TABLE tenure.note (
    id bigint PRIMARY KEY,
    body text NOT NULL
);
""",
}
SECOND = ["0001_schema", "0002_add_note"]
WORKER = """
import sys, tenure
app = tenure.App(sys.argv[1])
@app.job
def double(number: int) -> int:
    return 2 * number
job = double.enqueue(21)
app.run_worker(drain=True, handle_signals=False, maintain=False)
print(app.get(job.id).result)
"""
KILLED_HALFWAY = """
import os, signal, sys
from tenure.store.sqlite import migrate
from tenure.store.sqlite.store import SqliteStore
class Statements(list):
    def __iter__(self):
        yield self[0]
        os.kill(os.getpid(), signal.SIGKILL)
whole = migrate.split
migrate.split = lambda script: Statements(whole(script))
SqliteStore(sys.argv[1]).migrate()
"""


class Second:
    """The checkout of version 2."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.checkout = Checkout(folder)
        assert self.checkout.release("9.8.7").returncode == 0
        for engine, text in CHANGES.items():
            self.write(f"{STORE}/{engine}/sql/changes/0002_add_note.sql", text)
            # The truth is changed with it: what `changes` does to the tables, and a function of PostgreSQL.
            table = text[text.index("CREATE TABLE") :]
            self.append(f"{STORE}/{engine}/sql/schema_memo.sql", f"\n{table}")
            head, column = r"(CREATE TABLE tenure[._]queue \(\n)", r"\1    region TEXT,\n"
            self.checkout.change(f"{STORE}/{engine}/sql/schema.sql", head, column)
        self.append(
            f"{STORE}/postgres/sql/functions/memo.sql",
            "\nCREATE OR REPLACE FUNCTION tenure.notes() RETURNS bigint LANGUAGE sql STABLE\n"
            "AS $$ SELECT count(*) FROM tenure.note $$;\n",
        )
        self.checkout.commit("the second version")

    def write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(exist_ok=True)
        (self.path / name).write_text(text)

    def append(self, name: str, text: str) -> None:
        self.write(name, (self.path / name).read_text() + text)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": str(self.path / "src")}
        environment.pop("TENURE_URL", None)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, *arguments]
        return subprocess.Popen(
            command, cwd=self.path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def migrate(self, url: str, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "tenure", "migrate", "--url", url, *options)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Second:
    return Second(tmp_path_factory.mktemp("second") / "checkout")


Make = Callable[[], str]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes an empty database."""
    if engine == "sqlite":
        numbers = iter(range(99))
        yield lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    made: list[str] = []

    def create() -> str:
        made.append(server.create_database())
        return made[-1]

    yield create
    for url in made:
        server.drop_database(url)


@pytest.fixture
def url(make: Make) -> str:
    """A database of version 1."""
    found = make()
    with tenure.App(found, migrate="always") as app:
        app.enqueue("double", 1)
    return found


def shape(url: str) -> Any:
    """What a database consists of, whatever the order in which its columns were added."""
    if not url.startswith("sqlite"):
        return read_catalog(url)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        names = connection.execute("SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'").fetchall()
        columns = {
            name: sorted(row[1:] for row in connection.execute(f"PRAGMA table_xinfo('{name}')"))
            for kind, name in names
            if kind == "table"
        }
        return sorted(names), columns


def ledger(url: str) -> list[tuple[int, str, int]]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return connection.execute("SELECT number, name, compatible_from FROM tenure_migration").fetchall()
    with psycopg.connect(url) as server:
        return server.execute("SELECT number, name, compatible_from FROM tenure.migration ORDER BY 1").fetchall()


def execute(url: str, sql: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute(sql.replace("tenure.", "tenure_"))
    else:
        with psycopg.connect(url) as server:
            server.execute(sql.encode())


def test_old_and_new_programs_use_the_database_side_by_side(second: Second, engine: str, url: str) -> None:
    with tenure.App(url) as old:
        (grant,) = old.claim(worker="old", queues=["default"], lease_seconds=600)
        before = second.migrate(url, "--check")
        done = second.migrate(url)
        old.complete(grant, result=2)
        left = old.enqueue("double", 4)

        assert (before.returncode, "schema_behind" in before.stderr or "version 1" in before.stderr) == (6, True)
        assert (done.returncode, SECOND[1] in done.stdout) == (0, True), done.stderr
        assert second.migrate(url, "--check").returncode == 0
        assert second.migrate(url, "--json").stdout.replace(" ", "").startswith('{"applied":[]')
        assert ledger(url) == [(1, SECOND[0], 1), (2, SECOND[1], 1)]
        new = second.run("-c", WORKER, url)
        assert (new.returncode, new.stdout) == (0, "42\n"), new.stderr
        assert old.get(left.id).result == 8
    with tenure.App(url) as restarted:  # an old program may start again meanwhile
        assert restarted.get(grant.id).result == 2
        assert restarted.migrate() == []


def test_a_program_that_is_too_old_refuses_the_database_and_changes_nothing(second: Second, url: str) -> None:
    assert second.migrate(url).returncode == 0
    execute(url, "UPDATE tenure.migration SET compatible_from = 2 WHERE number = 2")
    before = shape(url)

    with pytest.raises(SchemaAhead, match=r"from version 2 of the schema on.*pip install -U tenure"):
        tenure.App(url).queues.all()
    with pytest.raises(SchemaAhead), tenure.App(url, migrate="never") as app:
        app.migrate()

    assert shape(url) == before


def test_both_ways_build_the_same_schema(second: Second, engine: str, url: str, make: Make) -> None:
    fresh, direct = make(), make()

    for target in (url, fresh):
        assert second.migrate(target).returncode == 0
    build = {
        "sqlite": "import sqlite3; from tenure.store.sqlite.migrate import script; "
        "sqlite3.connect(sys.argv[1].removeprefix('sqlite:///')).executescript(script())",
        "postgres": "import psycopg; from tenure.store.postgres.sql import schema_script; "
        "psycopg.connect(sys.argv[1], autocommit=True).execute('BEGIN;' + schema_script() + ';COMMIT')",
    }
    built = second.run("-W", "ignore", "-c", f"import sys; {build[engine]}", direct)

    assert built.returncode == 0, built.stderr
    assert shape(url) == shape(fresh) == shape(direct)


def test_the_printed_script_upgrades_and_makes_anew(second: Second, engine: str, url: str, make: Make) -> None:
    fresh, migrated = make(), make()
    assert second.migrate(migrated).returncode == 0

    for target in (url, fresh, url):
        printed = second.migrate(target, "--sql")
        assert printed.returncode == 0, printed.stderr
        if engine == "sqlite":
            lines = printed.stdout.splitlines(keepends=True)
            with closing(sqlite3.connect(target.removeprefix("sqlite:///"))) as connection:
                connection.executescript("".join(line for line in lines if not line.startswith(".")))
        else:
            psql = shutil.which("psql", path=str(wheel_bin_path(18)))
            subprocess.run([str(psql), "-X", "-q", target], input=printed.stdout, text=True, check=True)

    for target in (url, fresh):
        assert shape(target) == shape(migrated)
        assert ledger(target) == ledger(migrated)
        assert second.migrate(target, "--check").returncode == 0


def test_a_migration_that_fails_leaves_the_version_before(second: Second, engine: str, url: str) -> None:
    before = shape(url)
    change = second.path / STORE / engine / "sql" / "changes" / "0002_add_note.sql"
    whole = change.read_text()
    change.write_text(f"{whole}\n{whole[whole.index('CREATE TABLE') :]}")  # the table a second time
    try:
        done = second.migrate(url)
    finally:
        change.write_text(whole)

    assert done.returncode != 0
    assert shape(url) == before
    assert [number for number, *_ in ledger(url)] == [1]
    assert second.migrate(url).returncode == 0


def test_a_killed_migration_of_a_file_leaves_the_version_before(second: Second, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with tenure.App(url) as app:
        job = app.enqueue("double", 1)
    before = shape(url)

    killed = second.run("-c", KILLED_HALFWAY, url)

    assert killed.returncode == -9, killed.stderr
    assert shape(url) == before
    assert second.migrate(url).returncode == 0
    with tenure.App(url) as app:
        assert app.get(job.id).payload == 1


@pytest.mark.postgres
def test_a_killed_migration_of_a_server_leaves_the_version_before(second: Second, postgres_url: str) -> None:
    """It has changed the tables and is held up at the first function."""
    with tenure.App(postgres_url) as app:
        app.enqueue("double", 1)
    before = shape(postgres_url)
    with psycopg.connect(postgres_url) as blocker:
        blocker.execute("LOCK TABLE pg_catalog.pg_proc IN SHARE MODE")
        child = second.start("-m", "tenure", "migrate", "--url", postgres_url)
        try:
            wait_until(lambda: _migrating(postgres_url, "AND wait_event_type = 'Lock'") == 1)
        finally:
            child.kill()
            child.communicate()
        blocker.rollback()
    wait_until(lambda: _migrating(postgres_url) == 0)

    assert shape(postgres_url) == before
    assert second.migrate(postgres_url).returncode == 0


@pytest.mark.postgres
def test_of_several_that_upgrade_at_once_one_does(second: Second, postgres_url: str) -> None:
    with tenure.App(postgres_url) as app:
        app.queues.all()
    code = "import sys; from tenure.store.postgres.migrate import migrate; print(migrate(sys.argv[1]))"
    with psycopg.connect(postgres_url) as gatekeeper:
        gatekeeper.execute(statement("lock"))
        children = [second.start("-c", code, postgres_url) for _ in range(3)]
        try:
            wait_until(lambda: _migrating(postgres_url, "AND wait_event_type = 'Lock'") == 3)
            gatekeeper.commit()
            answers = [child.communicate(timeout=60)[0].strip() for child in children]
        finally:
            for child in children:
                child.kill()

    assert sorted(answers) == ["['0002_add_note']", "[]", "[]"]


@pytest.mark.postgres
def test_a_migration_that_waits_for_a_table_lets_others_pass(second: Second, postgres_url: str) -> None:
    """All that came after it waited behind it, for up to a minute, because one transaction had read the table."""
    with tenure.App(postgres_url) as app:
        app.queues.all()
    with psycopg.connect(postgres_url) as reader:
        reader.execute("SELECT count(*) FROM tenure.queue")
        child = second.start("-m", "tenure", "migrate", "--url", postgres_url)
        try:
            wait_until(lambda: _migrating(postgres_url, "AND wait_event_type = 'Lock'") == 1)
            with psycopg.connect(postgres_url, options="-c statement_timeout=40s") as other:
                assert other.execute("SELECT count(*) FROM tenure.queue").fetchone() is not None
            reader.commit()
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()

    assert (child.returncode, "0002_add_note" in out) == (0, True), err


@pytest.mark.postgres
def test_a_login_that_is_no_superuser_upgrades_what_it_made(second: Second) -> None:
    server = PostgresServer(wheel_bin_path(18))
    try:
        server.start()
        name = server.create_database().rpartition("/")[2]
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CREATE ROLE creator LOGIN CREATEROLE")
            connection.execute(f'ALTER DATABASE "{name}" OWNER TO creator'.encode())
        url = server.url(name, user="creator")
        with tenure.App(url) as app:
            app.enqueue("double", 1)

        done = second.migrate(url)

        assert done.returncode == 0, done.stderr
        assert {row[6] for row in read_catalog(url)["functions"]} == {"tenure_owner"}
        assert {row[4] for row in read_catalog(url)["tables"]} == {"tenure_owner"}
    finally:
        server.close()


def test_a_release_turns_the_change_into_a_migration_of_the_same_text(tmp_path: Path) -> None:
    second = Second(tmp_path / "checkout")
    url = f"sqlite:///{tmp_path}/jobs.db"
    assert second.migrate(url).returncode == 0
    second.checkout.change("CHANGELOG.md", r"## Unreleased\n", "## Unreleased\n\n- **New.** Notes.\n")
    second.checkout.commit("ready")

    done = second.checkout.release("9.8.8")

    assert done.returncode == 0, done.stderr
    for engine in CHANGES:
        folder = second.path / STORE / engine / "sql"
        assert not list((folder / "changes").glob("*.sql"))
        assert "tenure" in (folder / "migrations" / "0002_add_note.sql").read_text()
    assert "tenure.notes()" in (second.path / STORE / "postgres/sql/migrations/0002_add_note.sql").read_text()
    assert second.migrate(url, "--check").returncode == 0  # the database of before has the same text


def _read(folder: Path) -> tuple[Migration, ...]:
    return read_migrations(folder, lambda: "the schema", lambda change: change)


def test_files_that_make_no_sequence_are_refused(tmp_path: Path) -> None:
    assert [one.name for one in _read(tmp_path)] == ["0001_schema"]
    (tmp_path / "changes").mkdir()
    (tmp_path / "migrations").mkdir()
    (tmp_path / "changes" / "0002_more.sql").write_text("x")
    with pytest.raises(InternalError, match="a schema that was not released"):
        _read(tmp_path)
    (tmp_path / "migrations" / "0001_schema.sql").write_text("y")
    assert [(one.number, one.name, one.compatible_from) for one in _read(tmp_path)] == [
        (1, "0001_schema", 1),
        (2, "0002_more", 2),
    ]
    (tmp_path / "migrations" / "0002_other.sql").write_text("z")
    with pytest.raises(InternalError, match="without a gap: 0001_schema, 0002_other, 0002_more"):
        _read(tmp_path)
    (tmp_path / "migrations" / "0002_other.sql").rename(tmp_path / "migrations" / "0002 other.sql")
    with pytest.raises(InternalError, match="no name of a migration"):
        _read(tmp_path)


def test_every_row_of_the_ledger_is_judged() -> None:
    known = (Migration(1, "0001_a", "a"), Migration(2, "0002_b", "b"))
    rows = [(one.number, one.name, one.checksum, 1) for one in known]

    assert missing(known, []) == list(known)
    assert missing(known, rows[:1]) == [known[1]]
    assert missing(known, [*rows, (3, "0003_c", "x", 2)]) == []
    with pytest.raises(SchemaAhead, match="0004_d"):
        missing(known, [*rows, (3, "0003_c", "x", 2), (4, "0004_d", "x", 3)])
    with pytest.raises(SchemaError, match="0001_a"):
        missing(known, [(1, "0001_a", "other", 1), rows[1]])
    check_applied(known, 3, "0003_c", "x", 1)


def _migrating(url: str, condition: str = "") -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            f"AND application_name = 'tenure migrate' {condition}".encode()
        ).fetchone()
        assert row is not None
        return int(row[0])


def test_a_move_asks_for_a_source_of_its_own_version(second: Second, url: str, make: Make) -> None:
    """A source that is behind was closed and copied as far as its older tables went."""
    target = make()

    refused = second.run("-m", "tenure", "move", url, target)

    assert (refused.returncode, "is at migration 1, and this version of Tenure needs 2" in refused.stderr) == (6, True)
    with tenure.App(url) as app:
        app.enqueue("double", 2)
    assert second.migrate(url).returncode == 0
    done = second.run("-m", "tenure", "move", url, target)
    assert (done.returncode, done.stdout.partition("job\t")[2][:1]) == (0, "2"), done.stderr

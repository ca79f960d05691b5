"""Making the schema on PostgreSQL: once, however many try, and wherever it is cut."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tenure.errors import AccessDenied, SchemaAhead, SchemaError, StoreBusy
from tenure.store.migrations import FIRST
from tenure.store.postgres import migrate, sql
from tenure.store.postgres.testing import has_schema
from tests.migration.catalog import read_catalog
from tests.servers import PostgresServer, wheel_bin_path

pytestmark = pytest.mark.postgres

CHILD = "import sys; from tenure.store.postgres.migrate import migrate; print(migrate(sys.argv[1]))"


@pytest.fixture(params=["18", "15"])
def server(request: pytest.FixtureRequest) -> PostgresServer:
    """Each version of PostgreSQL that is there."""
    name = "postgres_server" if request.param == "18" else "postgres15_server"
    found: PostgresServer = request.getfixturevalue(name)
    return found


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    """An empty database."""
    made = server.create_database()
    yield made
    server.drop_database(made)


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about in time"
        time.sleep(0.01)


def test_every_source_file_is_part_of_the_schema() -> None:
    built = sql.schema_script()

    sources = [*(sql.FOLDER / "functions").glob("*.sql"), *sql.FOLDER.glob("schema*.sql"), sql.FOLDER / "roles.sql"]

    assert [path.name for path in sources if path.read_text(encoding="utf-8") not in built] == []


def test_a_migration_is_applied_once_and_then_found_done(url: str) -> None:
    assert migrate.schema_version(url) == 0

    first, second = migrate.migrate(url), migrate.migrate(url)

    assert first == [FIRST]
    assert second == []
    assert migrate.schema_version(url) == migrate.newest()


def test_the_roles_can_be_set_again_without_change(url: str) -> None:
    migrate.migrate(url)
    before = read_catalog(url)

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute((sql.FOLDER / "roles.sql").read_bytes())

    assert read_catalog(url) == before


def test_of_ten_processes_that_start_at_once_one_migrates(postgres_url: str) -> None:
    """The lock is held until all ten wait for it, so that they really meet."""
    with psycopg.connect(postgres_url) as gatekeeper:
        gatekeeper.execute(sql.statement("lock"))
        children = [_start_migration(postgres_url) for _ in range(10)]
        try:
            wait_for(lambda: _waiting(postgres_url) == 10)
            gatekeeper.commit()
            answers = [child.communicate(timeout=60) for child in children]
        finally:
            for child in children:
                child.kill()

    assert [child.returncode for child in children] == [0] * 10, answers
    assert sorted(answer.strip() for answer, _ in answers) == [str(_all_names())] + [str([])] * 9


@pytest.mark.parametrize("catalog", ["pg_namespace", "pg_proc", "pg_index", "pg_shdepend"])
def test_a_migration_that_is_killed_leaves_nothing_behind(postgres_url: str, catalog: str) -> None:
    """It is held up at its first write to `catalog` (schema, function, index, ownership) and dies there."""
    with psycopg.connect(postgres_url) as blocker:
        blocker.execute(f"LOCK TABLE pg_catalog.{catalog} IN SHARE MODE".encode())
        child = _start_migration(postgres_url)
        try:
            wait_for(lambda: _waiting(postgres_url) == 1)
        finally:
            child.kill()
            child.communicate()
        blocker.rollback()
    wait_for(lambda: _others(postgres_url) == 0)

    assert migrate.schema_version(postgres_url) == 0
    assert not has_schema(postgres_url)
    assert migrate.migrate(postgres_url) == _all_names()


def test_a_schema_from_a_newer_version_is_refused_and_left_alone(url: str) -> None:
    migrate.migrate(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO tenure.migration VALUES (9999, '9999_later', 'x', DEFAULT, 9999)")
    before = read_catalog(url)

    with pytest.raises(SchemaAhead, match=r"9999.*pip install -U tenure"):
        migrate.migrate(url)

    assert read_catalog(url) == before
    with pytest.raises(SchemaAhead, match=r"from version 9999 .* on.*pip install -U tenure"):
        migrate.schema_version(url)


def test_a_migration_that_was_changed_after_the_fact_is_refused(postgres_url: str) -> None:
    migrate.migrate(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE tenure.migration SET checksum = 'something else' WHERE number = 1")

    with pytest.raises(SchemaError, match="0001_schema"):
        migrate.migrate(postgres_url)
    with pytest.raises(SchemaError, match="0001_schema"):
        migrate.schema_version(postgres_url)


def test_the_printed_script_does_what_migrate_does(postgres_url: str, postgres_server: PostgresServer) -> None:
    psql = shutil.which("psql", path=str(wheel_bin_path(18)))
    assert psql is not None
    migrated = postgres_server.create_database()
    migrate.migrate(migrated)

    subprocess.run([psql, "--no-psqlrc", "--quiet", postgres_url], input=migrate.migration_sql(), text=True, check=True)

    assert read_catalog(postgres_url) == read_catalog(migrated)
    assert migrate.migrate(postgres_url) == []
    # M16: repeated, it stopped at the first table that was there.
    again = subprocess.run(
        [psql, "--no-psqlrc", "--quiet", postgres_url], input=migrate.migration_sql(), text=True, check=True,
        capture_output=True,
    )  # fmt: skip
    assert "0001_schema is there already" in again.stdout
    assert read_catalog(postgres_url) == read_catalog(migrated)
    postgres_server.drop_database(migrated)


def test_a_migration_waits_for_another_no_longer_than_its_limit(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V18: the lock of migrations was waited for without limit. The other holds it all the time."""
    monkeypatch.setattr(migrate, "_QUEUE_TIMEOUT", migrate._QUEUE_TIMEOUT.replace("60s", "100ms"))
    with psycopg.connect(postgres_url) as other:
        other.execute(sql.statement("lock"))

        with pytest.raises(StoreBusy):
            migrate.migrate(postgres_url)

    assert migrate.schema_version(postgres_url) == 0


def test_a_user_who_may_not_create_roles_migrates_without_them(caplog: pytest.LogCaptureFixture) -> None:
    """On a cluster of its own, because roles belong to the whole cluster and other tests have made them."""
    server = PostgresServer(wheel_bin_path(18))
    try:
        server.start()
        plain = _database_of(server, "plain", "")
        with caplog.at_level(logging.WARNING, logger="tenure"):
            migrate.migrate(plain)

        assert "may not create roles" in caplog.text
        assert migrate.schema_version(plain) == migrate.newest()
        assert {row[6] for row in read_catalog(plain)["functions"]} == {"plain"}

        creator = _database_of(server, "creator", "CREATEROLE")
        migrate.migrate(creator)
        assert {row[6] for row in read_catalog(creator)["functions"]} == {"tenure_owner"}
        assert migrate.migrate(creator) == []
    finally:
        server.close()


def test_a_user_who_may_not_create_a_schema_is_told_so(postgres_server: PostgresServer, postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS nobody_much")
        connection.execute("CREATE ROLE nobody_much LOGIN")

    with pytest.raises(AccessDenied, match="permission denied"):
        migrate.migrate(postgres_url.replace("tenure_test@", "nobody_much@"))


def test_two_databases_of_one_cluster_are_migrated_at_once() -> None:
    """Both create the same roles; whoever comes second finds them."""
    server = PostgresServer(wheel_bin_path(18))
    try:
        server.start()
        urls = [server.create_database() for _ in range(4)]
        children = [_start_migration(url) for url in urls]
        answers = [child.communicate(timeout=60) for child in children]
        assert [child.returncode for child in children] == [0] * 4, answers
        for url in urls:
            assert {row[6] for row in read_catalog(url)["functions"]} == {"tenure_owner"}
    finally:
        server.close()


def _start_migration(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _all_names() -> list[str]:
    return [FIRST]


def _waiting(url: str) -> int:
    return _count(url, "wait_event_type = 'Lock' AND application_name = 'tenure migrate'")


def _others(url: str) -> int:
    return _count(url, "application_name = 'tenure migrate'")


def _count(url: str, condition: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        question = f"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {condition}"
        row = connection.execute(question.encode()).fetchone()
        assert row is not None
        return int(row[0])


def _database_of(server: PostgresServer, role: str, attributes: str) -> str:
    """A database that belongs to a role of its own."""
    url = server.create_database()
    name = url.rpartition("/")[2]
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN {attributes}".encode())
        connection.execute(f'ALTER DATABASE "{name}" OWNER TO {role}'.encode())
    return server.url(name, user=role)

"""The test servers keep their own promises: both versions run, templates copy, a killed session leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from tests.conformance.engines import migrated_database
from tests.servers import PASSWORD, PASSWORD_USER, PostgresServer, debian_bin_path, wheel_bin_path

pytestmark = pytest.mark.postgres


def test_a_fresh_database_is_empty_and_speaks_the_version_of_the_wheel(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace")

        assert tables.fetchone() == (0,)
        assert connection.info.server_version // 10000 == 18


def test_the_sessions_server_spares_the_disk_and_nothing_else(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("off",)
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_debians_server_runs_the_same_way(postgres15_server: PostgresServer) -> None:
    url = postgres15_server.create_database()

    with psycopg.connect(url) as connection:
        assert connection.info.server_version // 10000 == 15
    postgres15_server.drop_database(url)


def test_a_template_is_prepared_once_and_copied_each_time(postgres_server: PostgresServer) -> None:
    prepared: list[str] = []

    def prepare(url: str) -> None:
        prepared.append(url)
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE copied (n int)")

    postgres_server.template("servers", prepare)
    postgres_server.template("servers", prepare)
    urls = [postgres_server.create_database(template="servers") for _ in range(2)]

    assert len(prepared) == 1
    for url in urls:
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT count(*) FROM copied").fetchone() == (0,)
        postgres_server.drop_database(url)


@pytest.mark.postgres
def test_a_lent_database_comes_again_as_new_unless_its_schema_was_changed(postgres_server: PostgresServer) -> None:
    scripts = ("CREATE TABLE tenure.mine (id bigint GENERATED ALWAYS AS IDENTITY, n integer)",)
    add = "INSERT INTO tenure.mine (n) VALUES (1) RETURNING id"
    with migrated_database(postgres_server, *scripts) as first, psycopg.connect(first) as connection:
        assert connection.execute(add).fetchone() == (1,)
    with migrated_database(postgres_server, *scripts) as second, psycopg.connect(second) as connection:
        assert connection.execute("SELECT count(*) FROM tenure.mine").fetchone() == (0,)
        assert connection.execute(add).fetchone() == (1,)
        connection.execute("CREATE INDEX ON tenure.mine (n)")
    with migrated_database(postgres_server, *scripts) as third:
        pass

    assert first == second != third


def test_a_wrong_password_is_refused(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url(user=PASSWORD_USER, password=PASSWORD)):
        pass

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres_server.url(user=PASSWORD_USER, password="wrong"))


def test_a_server_comes_back_with_its_data_after_every_kind_of_stop() -> None:
    server = PostgresServer(debian_bin_path(15) or wheel_bin_path(18))
    try:
        server.start()
        url = server.create_database()
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept (n int)")
            assert connection.execute("SHOW fsync").fetchone() == ("on",)

        server.restart("fast")
        server.restart("immediate")
        server.restart("kill")

        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    finally:
        server.close()
    assert not server.home.exists()


def test_a_session_that_is_killed_leaves_neither_a_server_nor_its_folder() -> None:
    script = (
        "from tests.servers import *\n"
        "server = PostgresServer(wheel_bin_path(18)); server.start()\n"
        "print(server.pid, server.home, flush=True); input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as session:
        assert session.stdout is not None
        pid, home = session.stdout.readline().split()
        session.send_signal(signal.SIGKILL)

    deadline = time.monotonic() + 20
    while (Path(home).exists() or _is_alive(int(pid))) and time.monotonic() < deadline:
        time.sleep(0.02)

    assert not Path(home).exists()
    assert not _is_alive(int(pid))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Nobody may be left to reap it: a zombie is dead enough.
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"

"""Two hundred workers on twenty connections of the server, by PgBouncer in transaction mode."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import psycopg
import pytest

import tenure
from tenure.errors import ConfigError
from tests.pooler import MISSING, PgBouncer, find_pgbouncer
from tests.scale.conftest import CHILDREN, StartWorker
from tests.servers import PostgresServer
from tests.waiting import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

PROCESSES, EACH, SIZE, JOBS = 4, 50, 20, 1000


@pytest.fixture
def direct(postgres_server: PostgresServer) -> Iterator[str]:
    made = postgres_server.create_database()
    with tenure.App(made, migrate="always") as app:
        app.migrate()
    yield made
    postgres_server.drop_database(made)


@pytest.fixture
def pooled(postgres_server: PostgresServer, direct: str) -> Iterator[str]:
    program = find_pgbouncer()
    if program is None:
        pytest.skip(MISSING)
    pooler = PgBouncer(program, postgres_server, size=SIZE)
    yield pooler.url(direct)
    pooler.close()


def test_two_hundred_workers_share_twenty_connections(direct: str, pooled: str, tmp_path: Path) -> None:
    crowd: list[subprocess.Popen[bytes]] = []
    with tenure.App(pooled) as app, (tmp_path / "crowd.log").open("wb") as log:
        try:
            crowd.extend(_start_crowd(pooled, log) for _ in range(PROCESSES))
            wait_until(lambda: len(app.workers.all()) == PROCESSES * EACH, 150)

            made = [one.id for one in app.enqueue_many(app.new_job("press", number) for number in range(JOBS))]
            wait_until(lambda: sum(one.jobs for one in app.queues.counts(state="succeeded")) == JOBS, 150)

            jobs = [job for job in app.get_many(made) if job is not None]
            assert [job.result for job in jobs] == [number + 1 for number in range(JOBS)]
            assert {(job.attempt, job.token) for job in jobs} == {(1, 1)}
            assert _sessions(direct) <= SIZE
        finally:
            for process in crowd:
                process.send_signal(signal.SIGTERM)
            codes = [process.wait(60) for process in crowd]
    assert codes == [0] * PROCESSES, (tmp_path / "crowd.log").read_text()[-3000:]


def test_a_worker_behind_a_pooler_finds_jobs_by_its_poll(pooled: str, start_worker: StartWorker) -> None:
    start_worker(pooled)
    with tenure.App(pooled) as app:
        wait_until(app.workers.all, 60)

        assert app.enqueue("press", 6).result(timeout=60) == 7


def test_a_pooler_that_the_url_does_not_tell_of_is_named(pooled: str) -> None:
    """It was told as a fault of Tenure's, to be reported."""
    url = pooled.partition("?")[0]
    with tenure.App(url) as first, tenure.App(url) as second:

        def call_both() -> None:
            for number in range(20):  # after some calls each connection prepares its statement, under one name
                first.enqueue("press", number)
                second.enqueue("press", number)

        with pytest.raises(ConfigError, match="tenure_pooler=1"):
            call_both()


def _start_crowd(url: str, log: BinaryIO) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TENURE_URL": url}
    return subprocess.Popen(
        [sys.executable, "crowd.py", str(EACH)], cwd=CHILDREN, env=environment, stdout=log, stderr=log
    )


def _sessions(direct: str) -> int:
    with psycopg.connect(direct) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    assert row is not None
    return int(row[0])

"""kill -9 at any moment: what was acknowledged is there, and the file is whole."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import start_child
from tests.waiting import wait_until

KILLS = int(os.environ.get("TENURE_KILLS", "20"))
"""How often; `TENURE_KILLS=200` for the long form."""


@pytest.mark.timeout(60 + KILLS * 3)
def test_nothing_acknowledged_is_lost_when_processes_are_killed(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    store.close()
    log = tmp_path / "acknowledged"
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    moments = random.Random(seed)

    for _ in range(KILLS):
        size = log.stat().st_size if log.exists() else 0
        child = start_child("work", f"sqlite:///{path}", str(log))
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        wait_until(lambda size=size: log.exists() and log.stat().st_size > size)  # type: ignore[misc]
        deadline = time.monotonic() + moments.uniform(0, 0.05)
        while time.monotonic() < deadline:
            pass
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        check(path, log)


def check(path: Path, log: Path) -> None:
    said: dict[str, set[str]] = {"enqueued": set(), "settled": set()}
    for line in log.read_text().splitlines():
        word, job_id = line.split()
        said[word].add(job_id)
    connection = sqlite3.connect(path)
    states = dict(connection.execute("SELECT id, state FROM tenure_job"))
    tokens = connection.execute("SELECT max(token), max(attempt) FROM tenure_job").fetchone()
    whole = connection.execute("PRAGMA integrity_check").fetchall()
    connection.close()

    assert whole == [("ok",)]
    assert said["enqueued"] <= states.keys()
    assert {states[job_id] for job_id in said["settled"]} <= {"succeeded"}
    assert len(states) % 3 == 0, "a batch is all or nothing"
    assert tokens[0] == tokens[1], "every grant was counted"

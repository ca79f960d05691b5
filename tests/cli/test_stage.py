"""The stage of the demo."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tenure.cli.demo.stage import freeze
from tests.waiting import wait_until

WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
while True:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE t SET n = n + 1")
    connection.execute("COMMIT")
"""


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells who holds a lock")
def test_a_process_is_frozen_where_it_holds_up_nobody(tmp_path: Path) -> None:
    chance = random.Random(1)
    path = tmp_path / "t.db"
    connection = sqlite3.connect(path, timeout=0.0, isolation_level=None)
    connection.executescript("PRAGMA journal_mode=WAL; CREATE TABLE t (n INTEGER); INSERT INTO t VALUES (0)")
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) as writer:
        try:
            wait_until(lambda: connection.execute("SELECT n FROM t").fetchone() != (0,))
            for _ in range(30):
                time.sleep(chance.uniform(0.0, 0.01))  # the moment is what is random here
                freeze(writer.pid)
                connection.execute("BEGIN IMMEDIATE")  # waits for nobody
                connection.execute("ROLLBACK")
                writer.send_signal(signal.SIGCONT)
        finally:
            writer.kill()
    connection.close()

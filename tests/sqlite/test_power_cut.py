"""A disk that fails at any write or sync of a commit: what was answered survives the power cut that follows.

The disk is a library that is preloaded into a child process (faulty_disk.c). It keeps, beside each file, the bytes that
its last successful sync covered; those are all that a power cut would have left.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import CHILDREN

SOURCE = Path(__file__).parent / "faulty_disk.c"
JOBS = 2
NEVER = 1_000_000


@pytest.fixture(scope="module")
def faulty_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not sys.platform.startswith("linux") or shutil.which("gcc") is None:
        pytest.skip("gcc is not there to build the failing disk, or this is no Linux")
    made = tmp_path_factory.mktemp("disk") / "faulty_disk.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl"], check=True)
    return made


def enqueue_on(disk: Path, folder: Path, at: int, mode: str) -> tuple[list[str], int]:
    """Enqueue in a new file on a disk whose `at`-th call fails: the ids that were accepted, and how many calls there
    were."""
    folder.mkdir()
    path = folder / "jobs.db"
    store = SqliteStore(f"sqlite:///{path}")
    store.migrate()
    store.close()
    shutil.copy(path, f"{path}.durable")
    faults = {"LD_PRELOAD": str(disk), "FAULT_FILE": str(path), "FAULT_AT": str(at), "FAULT_MODE": mode}
    done = subprocess.run(
        [sys.executable, str(CHILDREN / "repeat.py"), f"sqlite:///{path}", str(JOBS)],
        env={**os.environ, **faults},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.split(), int(done.stderr.rsplit("calls ", 1)[1])


def after_power_cut(folder: Path) -> set[str]:
    """The jobs that a power cut would have left."""
    cut = folder / "cut.db"
    shutil.copy(folder / "jobs.db.durable", cut)
    if (folder / "jobs.db-wal.durable").exists():
        shutil.copy(folder / "jobs.db-wal.durable", f"{cut}-wal")
    connection = sqlite3.connect(cut)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    found = {row[0] for row in connection.execute("SELECT id FROM tenure_job")}
    connection.close()
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", ["once", "stays"])
def test_what_was_accepted_survives_a_disk_that_fails_at_any_call(faulty_disk: Path, tmp_path: Path, mode: str) -> None:
    accepted, calls = enqueue_on(faulty_disk, tmp_path / "sound", NEVER, mode)
    assert len(accepted) == JOBS
    assert after_power_cut(tmp_path / "sound") >= set(accepted)
    assert calls > 10

    def lost(at: int) -> tuple[int, set[str], int]:
        folder = tmp_path / f"at-{at}"
        said, _ = enqueue_on(faulty_disk, folder, at, mode)
        return at, set(said) - after_power_cut(folder), len(said)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lost, range(1, calls + 1)))

    assert [(at, ids) for at, ids, _ in found if ids] == []
    if mode == "once":
        assert {number for _, _, number in found} == {JOBS}, "a repeat is accepted once the disk is well again"

"""Full disks and failing disks: refused cleanly, nothing half done, and work goes on when the fault is over."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.errors import Corrupt, StoreUnavailable
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import CHILDREN, put, small_disk, start_child


def outcome(path: Path, limit: int) -> tuple[int, list[str], int, int]:
    """What children/fill.py met: jobs accepted before the fault, the codes, then accepted and present at the end."""
    child = start_child("fill", f"sqlite:///{path}", str(limit))
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    first, second = out.splitlines()
    accepted, *codes = first.split()
    at_end, present = second.split()
    return int(accepted), codes, int(at_end), int(present)


def whole(path: Path) -> bool:
    connection = sqlite3.connect(path)
    found = connection.execute("PRAGMA integrity_check").fetchall()
    connection.close()
    return found == [("ok",)]


def test_a_file_that_may_not_grow_refuses_cleanly_and_goes_on_when_it_may(path: Path) -> None:
    accepted, codes, at_end, present = outcome(path, 900_000)

    assert accepted > 0
    assert set(codes) <= {"disk_full", "unavailable"}
    assert len(codes) == 3
    assert present == at_end == accepted + 5
    assert whole(path)


def test_a_full_disk_is_called_so_and_keeps_what_it_has(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", megabytes=1) as disk:
        path = disk / "jobs.db"

        accepted, codes, _, present = outcome(path, 0)

        assert accepted > 0
        assert codes == ["disk_full"] * 3
        assert present == accepted
        assert whole(path)


def can_inject() -> bool:
    if shutil.which("strace") is None:
        return False
    tried = subprocess.run(["strace", "-o", os.devnull, "true"], check=False, capture_output=True)
    return tried.returncode == 0


def injected(path: Path, fault: str, jobs: int) -> list[list[str]]:
    tracer = ["strace", "-f", "-o", os.devnull, "-e", f"inject={fault}"]
    done = subprocess.run(
        [*tracer, sys.executable, str(CHILDREN / "commit.py"), f"sqlite:///{path}", str(jobs)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.skipif(not can_inject(), reason="strace is not there, or may not trace")
@pytest.mark.parametrize(
    "fault", ["fdatasync:error=EIO:when=4", "pwrite64:error=EIO:when=20", "pwrite64:error=ENOSPC:when=20"]
)
def test_a_failing_disk_is_reported_once_and_loses_nothing(store: SqliteStore, path: Path, fault: str) -> None:
    put(store)
    store.close()

    answers = injected(path, fault, 20)

    codes = [code for code, _ in answers if code != "ok"]
    assert len(codes) == 1
    assert codes[0] in {"unavailable", "disk_full"}
    assert whole(path)
    connection = sqlite3.connect(path)
    there = {row[0] for row in connection.execute("SELECT id FROM tenure_job")}
    connection.close()
    assert {job_id for code, job_id in answers if code == "ok"} <= there


def test_after_an_io_error_the_file_is_checked_before_it_is_used(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store)
    writer = store._database.writer

    def fail(transaction: object, request: object) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
        raise error

    with pytest.raises(StoreUnavailable, match="checked"):
        writer.submit(fail, None, store._clock).result()
    assert writer.writing.connection is None
    checked: list[sqlite3.Connection] = []
    check = writer.writing.check

    def counted(connection: sqlite3.Connection) -> None:
        checked.append(connection)
        check(connection)

    monkeypatch.setattr(writer.writing, "check", counted)

    put(store)
    put(store)

    assert len(checked) == 1


def test_damage_found_by_that_check_stops_everything(store: SqliteStore, path: Path) -> None:
    for _ in range(50):
        put(store, payload='{"text": "' + "x" * 2000 + '"}')
    writer = store._database.writer
    store.close()
    writer.writing.must_check = True
    with path.open("r+b") as file:
        for page in range(12, path.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 64)

    with pytest.raises(Corrupt):
        writer.submit(lambda transaction, request: None, None, store._clock).result()

    writer.close()

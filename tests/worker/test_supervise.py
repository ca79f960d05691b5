"""Many processes under one parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until
from tests.worker.crews import ROOT, is_alive

# Children that record their pid and then behave as their argument says.
_CHILD = """
import os, signal, sys, time
from tenure.worker.supervisor import die_with_supervisor
die_with_supervisor()
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
if sys.argv[2] == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        time.sleep(60)
sys.exit(int(sys.argv[2]))
"""
_PARENT = """
import sys
from tenure.worker.supervisor import Supervisor
sys.exit(Supervisor([sys.executable, "-c", sys.argv[1], *sys.argv[3:]], int(sys.argv[2]), grace_seconds=5).run())
"""


class Family:
    def __init__(self, folder: Path, count: int, how: str, *before: str) -> None:
        self._file = folder / "pids"
        self.parent = subprocess.Popen(
            [*before, sys.executable, "-c", _PARENT, _CHILD, str(count), str(self._file), how],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def pids(self) -> list[int]:
        return [int(line) for line in self._file.read_text().split()] if self._file.exists() else []

    def alive(self) -> list[int]:
        return [pid for pid in self.pids() if is_alive(pid)]


@pytest.fixture
def families(tmp_path: Path) -> Iterator[list[Family]]:
    started: list[Family] = []
    yield started
    for family in started:
        for pid in family.pids():
            if is_alive(pid) and psutil.Process(pid).ppid() in {family.parent.pid, 1}:
                os.kill(pid, signal.SIGKILL)
        family.parent.kill()
        family.parent.wait()


def start(families: list[Family], folder: Path, count: int, how: str, *before: str) -> Family:
    families.append(Family(folder, count, how, *before))
    return families[-1]


def test_a_child_that_dies_is_replaced_and_a_stop_reaches_all(families: list[Family], tmp_path: Path) -> None:
    family = start(families, tmp_path, 2, "wait")
    wait_until(lambda: len(family.alive()) == 2)
    os.kill(family.pids()[0], signal.SIGKILL)
    wait_until(lambda: len(family.pids()) == 3 and len(family.alive()) == 2)

    family.parent.send_signal(signal.SIGTERM)

    assert family.parent.wait() == 0
    assert family.alive() == []


def test_children_that_end_by_themselves_are_not_replaced(families: list[Family], tmp_path: Path) -> None:
    family = start(families, tmp_path, 2, "0")

    assert family.parent.wait() == 0
    assert len(family.pids()) == 2


def test_wrong_settings_end_the_parent_with_the_same_code(families: list[Family], tmp_path: Path) -> None:
    family = start(families, tmp_path, 1, "2")

    assert family.parent.wait() == 2
    assert len(family.pids()) == 1


def test_a_child_that_keeps_dying_is_started_later_and_later(families: list[Family], tmp_path: Path) -> None:
    family = start(families, tmp_path, 1, "1")
    wait_until(lambda: len(family.pids()) == 3)

    family.parent.send_signal(signal.SIGTERM)

    assert family.parent.wait() in {0, 1}


def test_children_stop_when_their_parent_is_killed(families: list[Family], tmp_path: Path) -> None:
    family = start(families, tmp_path, 2, "wait")
    wait_until(lambda: len(family.alive()) == 2)

    family.parent.kill()
    family.parent.wait()

    wait_until(lambda: family.alive() == [])


def test_workers_under_nohup_outlive_the_end_of_their_terminal(families: list[Family], tmp_path: Path) -> None:
    """The parent waits for blocked signals, which the kernel keeps even where they are ignored, and its children were
    started with the default for SIGHUP: both stopped."""
    family = start(families, tmp_path, 2, "wait", "nohup")
    wait_until(lambda: len(family.alive()) == 2)
    first, second = family.pids()

    for pid in (family.parent.pid, first):
        os.kill(pid, signal.SIGHUP)
    os.kill(second, signal.SIGKILL)

    wait_until(lambda: len(family.pids()) == 3 and len(family.alive()) == 2)
    assert first in family.alive()

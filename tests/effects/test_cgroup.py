"""Control groups: made where allowed, killed whole, swept after a dead worker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.sandbox import cgroups
from tenure.sandbox.cgroups import Cgroup
from tenure.sandbox.rlimits import Limits


@pytest.fixture
def group() -> Iterator[Cgroup]:
    made = cgroups.create()
    if made is None:
        pytest.skip("no version 2 control group may be made here; `offers()` says so too")
    yield made
    made.remove()


def test_removing_a_group_kills_who_is_in_it(group: Cgroup) -> None:
    if cgroups.KILL not in group.powers:
        pytest.skip("this kernel has no cgroups.kill")
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    (group.path / "cgroup.procs").write_text(str(sleeper.pid))

    group.remove()

    assert sleeper.wait(20) == -9
    group.remove()
    assert not group.path.exists()


def test_a_group_of_a_dead_worker_is_swept_and_one_of_a_live_worker_stays(group: Cgroup) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = group.path.parent / f"tenure-{gone.pid}-0badcafe"
    left.mkdir()

    another = cgroups.create(group.path.parent)

    assert another is not None
    another.remove()
    assert not left.exists()
    assert group.path.exists()


def test_limits_are_written_as_the_kernel_reads_them(tmp_path: Path) -> None:
    """In a folder with the files of a group: not every machine lets us have memory and pids for real."""
    group = Cgroup(tmp_path, frozenset({cgroups.MEMORY, cgroups.PIDS}))

    group.limit(Limits(memory_bytes=1000, processes=10))

    assert (tmp_path / "memory.max").read_text() == "1000"
    assert (tmp_path / "pids.max").read_text() == "12"
    assert not group.ran_out_of_memory()
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n")
    assert group.ran_out_of_memory()


@pytest.mark.parametrize(
    ("here", "passed_on", "written"),
    [
        ("cpu memory", "", "+memory"),
        ("memory pids", "memory", "+pids"),
        ("memory pids", "memory pids", "memory pids"),
        ("cpu", "", ""),
    ],
)
def test_controllers_are_handed_down_to_new_groups(tmp_path: Path, here: str, passed_on: str, written: str) -> None:
    """As systemd leaves them to the one it delegates to. In a folder with the files of a group, as above."""
    (tmp_path / "cgroup.controllers").write_text(here)
    (tmp_path / "cgroup.subtree_control").write_text(passed_on)

    assert cgroups.create(tmp_path) is None, "an ordinary folder is no group"

    assert (tmp_path / "cgroup.subtree_control").read_text() == written


def test_what_is_missing_is_told_with_what_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cgroups.why_not(frozenset()).startswith("no version 2 group may be made here; rlimits bound")
    for table, why in (
        ("memory\t4\t23\t1\npids\t8\t1\t1\n", "version 1 has taken the controllers memory and pids"),
        ("memory\t0\t23\t1\npids\t8\t1\t1\n", "version 1 has taken the controllers pids"),
        ("memory\t0\t23\t1\npids\t0\t1\t1\n", "have no memory and no pids"),
    ):
        head = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"
        monkeypatch.setattr(Path, "read_text", lambda _, text=head + table: text)
        assert why in cgroups.why_not(frozenset({cgroups.KILL}))


def test_where_none_can_be_made_nothing_is_offered(tmp_path: Path) -> None:
    assert cgroups.create(tmp_path / "missing") is None
    assert cgroups.powers(tmp_path / "missing") == frozenset()
    assert cgroups.create(tmp_path) is None, "an ordinary folder is no group"
    assert list(tmp_path.iterdir()) == []

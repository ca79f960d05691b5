"""A file is absent, old, or new and whole, wherever the writer dies; and no late writer undoes a newer one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.effects.atomic_file import (
    BadTag,
    FileConflict,
    FileMissing,
    Superseded,
    Tag,
    delete_file,
    sweep_temp,
    write_file,
)
from tenure.errors import LeaseLost
from tenure.sandbox.safe_path import PathEscape, Root
from tests.effects.points import watch
from tests.fault.scale import LONG, scaled

CRASH_POINTS = Path(__file__).parent / "children/crash_points.py"
SAFE_CALLS = "write,fsync,rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdirat,rmdir,openat,openat2"


def holds() -> None:
    """The check of an attempt whose lease is fine, or was when it asked."""


def tickets(root: Root) -> list[str]:
    return sorted(path.name for path in root.path.rglob(".tenure-*"))


@pytest.fixture(params=["kernel", "walk"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Root]:
    folder = tmp_path / "root"
    folder.mkdir()
    with Root(folder, kernel=request.param == "kernel") as root:
        yield root


def test_writing_makes_folders_and_says_what_was_written(root: Root) -> None:
    record = write_file(root, "a/b/c.txt", b"hello", overwrite=False, check=holds, tag=Tag("j", 1))

    assert (root.path / "a/b/c.txt").read_bytes() == b"hello"
    assert record.sha256 == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert (record.size, record.written, tickets(root)) == (5, True, [])


def test_content_is_on_disk_before_its_name_and_the_name_before_the_answer(root: Root) -> None:
    calls: list[str] = []
    (root.path / "f").write_bytes(b"old")

    with watch(calls.append):
        write_file(root, "f", b"new", overwrite=True, check=lambda: calls.append("check"), tag=Tag("j", 1))
        calls.append("then")
        delete_file(root, "f", require_exists=True, check=lambda: calls.append("check"), tag=Tag("j", 1))

    acts = [call for call in calls if call in {"after write", "after fsync", "check", "before rename", "then"}]
    assert acts[:6] == ["after write", "after fsync", "check", "before rename", "after fsync", "then"]
    assert acts[6:10] == ["after fsync", "check", "before rename", "after fsync"]


def test_the_right_content_already_there_is_success_and_is_not_written_again(root: Root) -> None:
    write_file(root, "f", b"same", overwrite=False, check=holds, tag=Tag("j", 1))
    before = (root.path / "f").stat().st_ino

    record = write_file(root, "f", b"same", overwrite=False, check=_must_not_run, tag=Tag("k", 1))

    assert not record.written
    assert (root.path / "f").stat().st_ino == before


def test_other_content_is_a_conflict_unless_overwriting_is_asked_for(root: Root) -> None:
    (root.path / "f").write_bytes(b"other")

    with pytest.raises(FileConflict, match="overwrite"):
        write_file(root, "f", b"mine", overwrite=False, check=_must_not_run, tag=Tag("j", 1))
    assert (root.path / "f").read_bytes() == b"other"

    write_file(root, "f", b"mine", overwrite=True, check=holds, tag=Tag("j", 2))
    assert (root.path / "f").read_bytes() == b"mine"
    assert tickets(root) == []


@pytest.mark.parametrize(("theirs", "conflict"), [(b"mine", False), (b"other", True)])
def test_a_file_that_appears_during_the_check_is_not_overwritten(root: Root, theirs: bytes, conflict: bool) -> None:
    def appear() -> None:
        (root.path / "f").write_bytes(theirs)

    if conflict:
        with pytest.raises(FileConflict):
            write_file(root, "f", b"mine", overwrite=False, check=appear, tag=Tag("j", 1))
    else:
        assert not write_file(root, "f", b"mine", overwrite=False, check=appear, tag=Tag("j", 1)).written

    assert (root.path / "f").read_bytes() == theirs
    assert tickets(root) == []


def test_a_lost_lease_leaves_the_target_alone_and_no_ticket(root: Root) -> None:
    (root.path / "f").write_bytes(b"old")

    with pytest.raises(LeaseLost):
        write_file(root, "f", b"new", overwrite=True, check=_lost, tag=Tag("j", 1))
    with pytest.raises(LeaseLost):
        delete_file(root, "f", require_exists=True, check=_lost, tag=Tag("j", 1))

    assert (root.path / "f").read_bytes() == b"old"
    assert tickets(root) == []


def test_overwriting_one_name_of_a_hard_link_leaves_the_other_name_alone(root: Root, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"precious")
    os.link(tmp_path / "outside", root.path / "f")

    write_file(root, "f", b"new", overwrite=True, check=holds, tag=Tag("j", 1))

    assert (tmp_path / "outside").read_bytes() == b"precious"
    assert (root.path / "f").read_bytes() == b"new"


def test_the_setuid_bit_of_an_overwritten_file_is_gone(root: Root) -> None:
    (root.path / "f").write_bytes(b"x")
    (root.path / "f").chmod(0o4755)

    write_file(root, "f", b"new", overwrite=True, check=holds, tag=Tag("j", 1), mode=0o6755)

    assert (root.path / "f").stat().st_mode & 0o7000 == 0


@pytest.mark.parametrize("path", ["folder", "link", "fifo", ".tenure-j.1.0123456789abcdef.tmp", "a/.tenure-x/b"])
def test_what_is_no_plain_file_is_neither_written_nor_deleted(root: Root, tmp_path: Path, path: str) -> None:
    (root.path / "folder").mkdir()
    (tmp_path / "outside").write_text("x")
    (root.path / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(root.path / "fifo")

    with pytest.raises(PathEscape):
        write_file(root, path, b"new", overwrite=True, check=_must_not_run, tag=Tag("j", 1))
    with pytest.raises(PathEscape):
        delete_file(root, path, require_exists=False, check=_must_not_run, tag=Tag("j", 1))

    assert (tmp_path / "outside").read_text() == "x"


def test_deleting_removes_the_file_and_says_so(root: Root) -> None:
    (root.path / "f").write_bytes(b"x")
    confirmed: list[bool] = []

    def confirm() -> None:
        confirmed.append(not (root.path / "f").exists() and len(tickets(root)) == 1)

    assert delete_file(root, "f", require_exists=True, check=holds, tag=Tag("j", 1), confirm=confirm).deleted
    assert confirmed == [True]
    assert tickets(root) == []


def test_deleting_what_is_not_there_is_success_unless_it_must_exist(root: Root) -> None:
    for path in ("f", "no/such/folder"):
        assert not delete_file(root, path, require_exists=False, check=_must_not_run, tag=Tag("j", 1)).deleted
        with pytest.raises(FileMissing, match="requires"):
            delete_file(root, path, require_exists=True, check=_must_not_run, tag=Tag("j", 1))


def test_a_file_gone_during_the_check_counts_as_missing(root: Root) -> None:
    (root.path / "f").write_bytes(b"x")

    with pytest.raises(FileMissing):
        delete_file(root, "f", require_exists=True, check=(root.path / "f").unlink, tag=Tag("j", 1))

    assert tickets(root) == []


def test_tickets_of_an_ended_job_are_swept_and_others_stay(root: Root) -> None:
    mine, other = ".tenure-j.3.0123456789abcdef.tmp", ".tenure-k.1.0123456789abcdef.tmp"
    (root.path / "d").mkdir()
    (root.path / "d" / mine).mkdir()
    (root.path / "d" / mine / "victim").write_text("x")
    (root.path / "d" / other).write_text("x")
    (root.path / "d" / ".tenure-own-file").write_text("not a ticket")

    assert sweep_temp(root, "d", job="j") == (mine,)
    assert sweep_temp(root, "d", older_than=timedelta(hours=1)) == ()
    os.utime(root.path / "d" / other, (0, 0))
    assert sweep_temp(root, "d", older_than=timedelta(hours=1)) == (other,)

    assert [path.name for path in (root.path / "d").iterdir()] == [".tenure-own-file"]
    with pytest.raises(BadTag):
        sweep_temp(root)


@pytest.mark.parametrize(("job", "token"), [("", 1), ("a/b", 1), ("a.b", 1), ("x" * 65, 1), ("j", -1)])
def test_a_tag_must_fit_into_a_file_name(job: str, token: int) -> None:
    with pytest.raises(BadTag):
        Tag(job, token)


@pytest.mark.parametrize("token", [2, 64, 65, 10_000])
def test_a_later_attempt_removes_what_earlier_ones_left_however_high_the_token(root: Root, token: int) -> None:
    for earlier in (1, token - 1):
        with suppress(ZeroDivisionError), watch(_fail_at("before rename")):
            write_file(root, "f", b"old", overwrite=True, check=holds, tag=Tag("j", earlier))
    left_by_force = [name for t in (1, token - 1) if (name := _plant(root, t))]

    write_file(root, "f", b"new", overwrite=True, check=holds, tag=Tag("j", token))

    assert left_by_force
    assert tickets(root) == []


# Death at every point.


@pytest.mark.parametrize("mode", ["kernel", "walk"])
@pytest.mark.parametrize("operation", ["create", "replace", "delete"])
def test_killed_at_every_call_the_target_is_never_torn_and_a_rerun_ends_well(
    tmp_path: Path, operation: str, mode: str
) -> None:
    folder = tmp_path / "root"
    folder.mkdir()
    before, after = {"create": ("absent", "new"), "replace": ("old", "new"), "delete": ("old", "absent")}[operation]

    run = subprocess.run(
        [sys.executable, CRASH_POINTS, folder, operation, mode], capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stderr
    deaths = [json.loads(line) for line in run.stdout.splitlines()]
    assert [death["died"] for death in deaths] == [True] * (len(deaths) - 1) + [False]
    assert len(deaths) > 12
    assert {death["seen"] for death in deaths} == {before, after}
    assert any(death["left"] for death in deaths), "no death came between ticket and rename"
    assert {(death["then"], death["left_then"]) for death in deaths} == {(after, 0)}


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed; the test above needs none")
@pytest.mark.parametrize("mode", ["kernel", "walk"])
@pytest.mark.parametrize("operation", ["create", "replace", "delete"])
def test_killed_at_every_system_call_the_target_is_never_torn(tmp_path: Path, operation: str, mode: str) -> None:
    """The same seen from outside: strace counts the calls the kernel gets, and kills at each one."""
    folder = tmp_path / "root"
    new = b"new!" * 600_000
    log = tmp_path / "log"

    def run(token: int, *strace: str) -> int:
        # -B: calls are counted from the start of the process, so a first run must not write compiled files.
        script = [sys.executable, "-B", str(CRASH_POINTS), str(folder), "once", mode, operation, str(token)]
        return subprocess.run([*strace, *script], check=False, stderr=subprocess.DEVNULL).returncode

    def prepare() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        (tmp_path / "ledger").unlink(missing_ok=True)
        (folder / "deep/er").mkdir(parents=True)
        if operation != "create":
            (folder / "deep/er/target.bin").write_bytes(b"old")

    prepare()
    assert run(1, "strace", "-f", "-o", str(log), "-e", f"trace={SAFE_CALLS},faccessat,faccessat2,access") == 0
    points = _calls_after_the_marker(log.read_text())
    assert len(points) > 6
    for call, when in points:
        prepare()
        run(1, "strace", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={when}")

        target = folder / "deep/er/target.bin"
        assert (target.read_bytes() if target.exists() else None) in {None, b"old", new}, (call, when)
        assert run(2) == 0, (call, when)
        assert target.exists() == (operation != "delete")
        assert not list(folder.rglob(".tenure-*"))


def _calls_after_the_marker(log: str) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    points, started = [], False
    for line in log.splitlines():
        if "/the-operation-starts-here" in line:
            started = True
        elif found := re.match(r"\d+\s+(\w+)\(", line):
            call = found[1]
            counts[call] = counts.get(call, 0) + 1
            if started:
                points.append((call, counts[call]))
    return points


# Zombies.


class Lease:
    """The store, as far as a check asks it: the newest token."""

    def __init__(self) -> None:
        self.token = 0

    def claim(self) -> tuple[Tag, Callable[[], None]]:
        self.token += 1
        mine = self.token

        def check() -> None:
            if self.token != mine:
                raise LeaseLost(f"token {mine} is not {self.token}")

        return Tag("job", mine), check


def test_zombies_woken_right_before_the_rename_change_nothing(root: Root) -> None:
    """The older attempt asks, is told that its lease holds, and sleeps past it; it wakes up and renames."""
    lease = Lease()
    for number in range(scaled(120, 1000)):
        newest = f"newest {number}".encode()
        old, old_check = lease.claim()

        def sleep_past_the_lease(check: Callable[[], None] = old_check, newest: bytes = newest) -> None:
            check()
            tag, newer_check = lease.claim()
            write_file(root, "f", newest, overwrite=True, check=newer_check, tag=tag)

        sort = ("overwrite", "create", "delete")[number % 3]
        if sort == "create":  # one that may not overwrite gets as far as its rename only when nothing is there
            (root.path / "f").unlink()
        with pytest.raises(Superseded):
            _act(sort, root, sleep_past_the_lease, old)

        assert (root.path / "f").read_bytes() == newest
        assert tickets(root) == []


@pytest.mark.parametrize("sort", ["overwrite", "create", "delete"])
def test_an_attempt_paused_at_any_point_never_undoes_a_newer_one(root: Root, sort: str) -> None:
    """Pairs of pause points: the older stops at one, the newer claims and stops at another, the older ends first. All
    pairs in the long form; in the short one every point of the older, with each tenth of the newer, another tenth each
    time.

    For writes the newer content must stand at the end. For deletes a third job makes the file anew when the newer
    attempt is through, and that file must stay.
    """

    def older_act(tag: Tag, check: Callable[[], None]) -> None:
        _act(sort, root, check, tag)

    def newer_act(tag: Tag, check: Callable[[], None]) -> None:
        if sort == "delete":
            delete_file(root, "f", require_exists=False, check=check, tag=tag)
            write_file(root, "f", b"newer", overwrite=True, check=holds, tag=Tag("third", 1))
        else:
            # What a retry may meet is what an older attempt of the same job wrote just before: it may go over that.
            write_file(root, "f", b"newer", overwrite=True, check=check, tag=tag)

    pairs = 0
    for at in range(1000):
        for newer_at in (*range(at % 10, 60, 10), 10_000) if not LONG else (*range(60), 10_000):
            (root.path / "f").unlink(missing_ok=True)
            if sort != "create":
                (root.path / "f").write_bytes(b"before")
            reached = _interleave(older_act, newer_act, at, newer_at)
            pairs += 1
            assert (root.path / "f").read_bytes() == b"newer", (at, newer_at)
            assert tickets(root) == [], (at, newer_at)
        if not reached:
            break

    assert pairs > 100


def _interleave(
    older: Callable[[Tag, Callable[[], None]], None],
    newer: Callable[[Tag, Callable[[], None]], None],
    older_at: int,
    newer_at: int,
) -> bool:
    """Run `older` up to its point, then `newer` up to its own, then `older` to its end, then `newer`."""
    lease = Lease()
    older_paused, newer_paused, older_ended = threading.Event(), threading.Event(), threading.Event()
    counts = {"older": older_at, "newer": newer_at}
    reached = False

    def hook(_: str) -> None:
        nonlocal reached
        me = threading.current_thread().name
        if me in counts:
            counts[me] -= 1
            if counts[me] == -1 and me == "older":
                reached = True
                older_paused.set()
                assert newer_paused.wait(20)
            elif counts[me] == -1:
                newer_paused.set()
                assert older_ended.wait(20)

    def run_older() -> None:
        tag, check = lease.claim()
        try:
            with suppress(LeaseLost, FileConflict):
                older(tag, check)
        finally:
            older_paused.set()
            older_ended.set()

    def run_newer() -> None:
        assert older_paused.wait(20)
        try:
            newer(*lease.claim())
        finally:
            newer_paused.set()

    threads = [threading.Thread(target=run_older, name="older"), threading.Thread(target=run_newer, name="newer")]
    with watch(hook):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return reached


def _act(sort: str, root: Root, check: Callable[[], None], tag: Tag) -> None:
    if sort == "delete":
        delete_file(root, "f", require_exists=False, check=check, tag=tag)
    else:
        write_file(root, "f", b"older", overwrite=sort == "overwrite", check=check, tag=tag)


def _must_not_run() -> None:
    raise AssertionError("there is nothing to check, for nothing will be written")


def _lost() -> None:
    raise LeaseLost("the lease went to somebody else")


def _fail_at(point: str) -> Callable[[str], None]:
    def hook(name: str) -> None:
        if name == point:
            raise ZeroDivisionError

    return hook


def _plant(root: Root, token: int) -> str:
    """The ticket that a killed attempt would leave: its name is learned from a live one."""
    seen: list[str] = []
    write_file(root, "f", os.urandom(8), overwrite=True, check=lambda: seen.extend(tickets(root)), tag=Tag("j", token))
    (root.path / seen[-1]).write_bytes(b"half")
    return seen[-1]

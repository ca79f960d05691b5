"""No path, link or race leads out of a root; by the kernel's rules and by our own walk."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.sandbox.safe_path import PathEscape, Root, split
from tests.fault.scale import scaled

CHILDREN = Path(__file__).parent / "children"


@pytest.fixture(params=["kernel", "walk"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Root]:
    folder = tmp_path / "root"
    folder.mkdir()
    with Root(folder, kernel=request.param == "kernel") as root:
        if request.param == "walk":
            assert not root.kernel
        yield root


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "..",
        "../x",
        "a/../../x",
        "a/..",
        ".",
        "./a",
        "a/./b",
        "a//b",
        "a/",
        "a\0b",
        "a\nb",
        "a.",
        "a./b",
        "x" * 256,
        "é" * 128,
        "/".join("a" * 65),
        "a/" * 30 + "b" * 5000,
        "\udc80",
    ],
)
def test_a_path_that_is_not_plain_names_is_refused(root: Root, path: str) -> None:
    with pytest.raises(PathEscape):
        split(path)
    with pytest.raises(PathEscape):
        root.stat(path)


def test_plain_names_are_taken_as_they_are() -> None:
    assert split("a/b c/ü.txt") == ("a", "b c", "ü.txt")
    assert split(".hidden/..two") == (".hidden", "..two")


def test_a_link_on_the_way_is_refused(root: Root, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    (root.path / "link").symlink_to(outside)
    (root.path / "inner").mkdir()
    (root.path / "inner" / "link").symlink_to("../..")

    for path in ("link/secret", "link/new/deep", "inner/link/outside/secret"):
        with pytest.raises(PathEscape, match="link"):
            root.stat(path)
        with pytest.raises(PathEscape, match="link"), root.parent(path, create=True):
            pass

    assert [p.name for p in outside.iterdir()] == ["secret"]


def test_a_file_on_the_way_is_refused(root: Root) -> None:
    (root.path / "file").write_text("x")

    with pytest.raises(PathEscape), root.parent("file/below", create=True):
        pass


def test_a_missing_folder_is_missing_unless_it_may_be_made(root: Root) -> None:
    with pytest.raises(FileNotFoundError), root.parent("a/b/c"):
        pass

    with root.parent("a/b/c", create=True) as (folder, name):
        os.close(folder.create(name))

    assert (root.path / "a/b/c").is_file()
    assert root.stat("a/b/c") is not None
    assert root.stat("a/b/none") is None
    assert root.stat("none/b") is None


def test_only_plain_files_are_opened(root: Root, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (root.path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(root.path / "fifo")
    (root.path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.path.relpath(root.path / "sock"))
        names = ["link", "fifo", "folder", "sock"]
        if os.geteuid() == 0:
            os.mknod(root.path / "device", 0o20666, os.makedev(1, 3))
            names.append("device")

        for name in names:
            with pytest.raises(PathEscape, match=name):
                root.open_regular(name)
            with pytest.raises(PathEscape, match=name):
                root.stat(name)


def test_magic_links_of_proc_are_refused(root: Root) -> None:
    with Root("/proc", kernel=root.kernel) as proc:
        for path in ("self/environ", f"{os.getpid()}/root/etc/passwd", f"{os.getpid()}/cwd/x"):
            with pytest.raises(PathEscape):
                proc.open_regular(path)


def test_special_bits_are_dropped_from_new_files(root: Root) -> None:
    with root.parent("tool") as (folder, name):
        os.close(folder.create(name, 0o7755))

    assert (root.path / "tool").stat().st_mode & 0o7000 == 0


def test_a_taken_name_is_not_replaced_unless_asked(root: Root) -> None:
    (root.path / "a").write_text("a")
    (root.path / "b").write_text("b")

    with root.folder(()) as folder:
        with pytest.raises(FileExistsError):
            folder.rename("a", "b", replace=False)
        assert (root.path / "b").read_text() == "b"
        folder.rename("a", "c", replace=False)
        folder.rename("c", "b", replace=True)

    assert [p.name for p in root.path.iterdir()] == ["b"]
    assert (root.path / "b").read_text() == "a"


def test_a_root_may_itself_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")

    with Root(tmp_path / "alias") as root, root.parent("x") as (folder, name):
        os.close(folder.create(name))

    assert (tmp_path / "real/x").exists()


def descriptors_beneath(folder: Path) -> list[str]:
    """What this process has open there. Others belong to other tests, and are closed whenever Python gets to it."""
    links = (open_file.path for open_file in os.scandir("/proc/self/fd"))
    return [target for link in links if (target := os.path.realpath(link)).startswith(str(folder))]


def test_no_descriptor_is_left_open(root: Root) -> None:
    for _ in range(50):
        with root.parent("a/b/c", create=True):
            pass
        for bad in ("a/b/../c", "a/none/c/d"):
            with pytest.raises((PathEscape, FileNotFoundError)), root.parent(bad):
                pass

    assert descriptors_beneath(root.path.resolve()) == [str(root.path.resolve())]


@pytest.mark.parametrize("tries", [3_000, pytest.param(scaled(15_000, 100_000), marks=pytest.mark.slow)])
def test_swapping_a_folder_for_a_link_never_leads_out(root: Root, tmp_path: Path, tries: int) -> None:
    """Another process swaps `d` between a folder and a link to the outside, while we make files in it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (root.path / "d").mkdir()
    swapper = subprocess.Popen(
        [sys.executable, CHILDREN / "swap_links.py", root.path / "d", outside], stdin=subprocess.PIPE
    )
    done = refused = 0
    try:
        for number in range(tries):
            try:
                with root.parent(f"d/{number}") as (folder, name):
                    os.close(folder.create(name))
                    folder.unlink(name)
                done += 1
            except (PathEscape, FileNotFoundError):
                refused += 1
            assert not any(outside.iterdir()) if number % 100 == 0 else True
    finally:
        swapper.communicate()

    assert not any(outside.iterdir())
    assert (outside.stat().st_mtime_ns, swapper.returncode) == (outside.stat().st_ctime_ns, 0)
    assert done > 0, "the race was never lost by the swapper"
    assert refused > 0, "the race was never won by the swapper"

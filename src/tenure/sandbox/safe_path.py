"""Files strictly beneath a folder: no path, link or race leads out of it.

A path is never compared as a string. It is taken apart into names, and the kernel walks them from an open
folder with `openat2` (beneath the root, no symbolic links, no magic links). Kernels without it get a walk of our
own, one name at a time with O_NOFOLLOW: every step is taken from a folder that is already open, so swapping a
folder for a link in between changes nothing. All later acts name one file inside that open folder.

Hard links need no rule: nothing here writes through a name that exists. Files are made under new names and
renamed over old ones, which leaves the other names of an old file untouched.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from tenure.errors import UsageError
from tenure.sandbox import linux

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 4000
MAX_DEPTH = 64

_RESOLVE = linux.RESOLVE_BENEATH | linux.RESOLVE_NO_SYMLINKS | linux.RESOLVE_NO_MAGICLINKS
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REGULAR = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_SUCH_CALL = {errno.ENOSYS, errno.EINVAL, errno.EPERM}  # EPERM: a container's seccomp filter says so


class PathEscape(UsageError):
    """A path is malformed, leads out of its root, or meets something that is not a plain file or folder."""

    code = "path_escape"

    def __init__(self, path: str, why: str) -> None:
        shown = path if len(path) <= 120 else path[:120] + "…"
        super().__init__(
            f"Path {shown!r} is refused: {why}. Nothing was changed. "
            "Give a relative path of plain names that stays in the folder set as root."
        )
        self.path = path


def split(path: str) -> tuple[str, ...]:
    """The names of a relative path, or PathEscape for whatever could mean something else somewhere."""
    if why := _fault_of(path):
        raise PathEscape(path, why)
    return tuple(path.split("/"))


class Folder:
    """One open folder beneath a root. Every act names a single file inside it and never follows a link."""

    def __init__(self, fd: int, path: str, *, kernel: bool) -> None:
        self.fd = fd
        self._path = path
        self._kernel = kernel

    def create(self, name: str, mode: int = 0o644) -> int:
        """A new file, open for writing. FileExistsError if the name is taken; setuid and setgid bits are dropped."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, mode & 0o777, dir_fd=self.fd)

    def open_regular(self, name: str) -> int:
        """An existing plain file, open for reading. Devices and FIFOs are refused without being opened."""
        self.stat_regular(name)
        fd = os.open(name, _REGULAR, dir_fd=self.fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):  # swapped since the look above
            os.close(fd)
            raise self._refuse(name, "it is not a plain file")
        return fd

    def stat_regular(self, name: str) -> os.stat_result | None:
        """What the name is, or None if there is none. Anything but a plain file is PathEscape."""
        try:
            found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise self._refuse(name, f"there is {_sort_of(found.st_mode)} of that name")
        return found

    def inode(self, name: str) -> int | None:
        """The number of whatever bears the name, or None if nothing does."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """All names in the folder, in no order."""
        with os.scandir(self.fd) as entries:
            return [entry.name for entry in entries]

    @contextmanager
    def subfolder(self, name: str, *, create: bool = True) -> Iterator[Folder]:
        """Open a folder in this one, made for the owner alone if missing. A link of that name is refused."""
        if create:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self.fd)
        path = f"{self._path}/{name}" if self._path else name
        try:
            fd = os.open(name, _FOLDER, dir_fd=self.fd)
        except OSError as exc:
            raise _explained(exc, path) from exc
        try:
            yield Folder(fd, path, kernel=self._kernel)
        finally:
            os.close(fd)

    def rename(self, src: str, dst: str, *, replace: bool) -> None:
        """Give a file another name, in one step. Without `replace` a taken name is FileExistsError."""
        if replace:
            os.rename(src, dst, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            return
        if self._kernel:
            try:
                linux.rename_noreplace(src, dst, dir_fd=self.fd)
                return
            except OSError as exc:
                if exc.errno not in _NO_SUCH_CALL:
                    raise
        # Killed between the two, both names stand for the whole file; the next attempt removes the first.
        os.link(src, dst, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)
        os.unlink(src, dir_fd=self.fd)

    def unlink(self, name: str) -> None:
        """Remove one name. FileNotFoundError if there is none."""
        os.unlink(name, dir_fd=self.fd)

    def rmdir(self, name: str) -> None:
        """Remove one empty folder."""
        os.rmdir(name, dir_fd=self.fd)

    def sync(self) -> None:
        """Return once the names in this folder are on disk."""
        os.fsync(self.fd)

    def _refuse(self, name: str, why: str) -> PathEscape:
        return PathEscape(f"{self._path}/{name}" if self._path else name, why)


class Root:
    """A folder, held open, that paths may not leave. Use it as a context manager, or close it.

    Args:
        path: An existing folder. Links on the way to it are the operator's and are followed.
        kernel: False forces the walk of our own, as on kernels without openat2 and renameat2.
    """

    def __init__(self, path: Path | str, *, kernel: bool = True) -> None:
        self.path = Path(path)
        self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.kernel = kernel and _has_openat2(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @contextmanager
    def folder(self, names: tuple[str, ...], *, create: bool = False) -> Iterator[Folder]:
        """Open the folder that `names` lead to. With `create`, missing ones are made and are on disk before use.

        Raises:
            FileNotFoundError: A folder is missing and `create` is off.
            PathEscape: A name on the way is a link or is not a folder.
        """
        path = "/".join(names)
        if names:
            split(path)
        fd = self._open_folder(names, create=create)
        try:
            yield Folder(fd, path, kernel=self.kernel)
        finally:
            os.close(fd)

    @contextmanager
    def parent(self, path: str, *, create: bool = False) -> Iterator[tuple[Folder, str]]:
        """The open folder that holds `path`, and the last name."""
        *folders, name = split(path)
        with self.folder(tuple(folders), create=create) as folder:
            yield folder, name

    def stat(self, path: str) -> os.stat_result | None:
        """What a plain file is, or None if it or a folder on the way is missing."""
        try:
            with self.parent(path) as (folder, name):
                return folder.stat_regular(name)
        except FileNotFoundError:
            return None

    def open_regular(self, path: str) -> int:
        """An existing plain file, open for reading."""
        with self.parent(path) as (folder, name):
            return folder.open_regular(name)

    def _open_folder(self, names: tuple[str, ...], *, create: bool) -> int:
        if self.kernel and names:
            try:
                return self._resolve("/".join(names))
            except FileNotFoundError:
                if not create:
                    raise
        return self._walk(names, create=create)

    def _resolve(self, path: str) -> int:
        for _ in range(8):
            try:
                return linux.openat2(path, _FOLDER, 0, _RESOLVE, dir_fd=self.fd)
            except BlockingIOError:  # EAGAIN: the tree moved while the kernel walked it
                continue
            except OSError as exc:
                raise _explained(exc, path) from exc
        raise PathEscape(path, "its folders are being moved about while it is opened")

    def _walk(self, names: tuple[str, ...], *, create: bool) -> int:
        at = os.open(".", _FOLDER, dir_fd=self.fd)
        try:
            for depth, name in enumerate(names):
                below = _enter(at, name, "/".join(names[: depth + 1]), create=create)
                os.close(at)
                at = below
        except BaseException:
            os.close(at)
            raise
        return at


def _fault_of(path: str) -> str | None:
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    names = path.split("/")
    if not path:
        return "it is empty"
    if path.startswith("/"):
        return "it is absolute"
    if size > MAX_PATH_BYTES or len(names) > MAX_DEPTH:
        return "it is too long"
    return next((why for name in names if (why := _fault_of_name(name))), None)


def _fault_of_name(name: str) -> str | None:
    if not name:
        return "it has an empty name or ends in a slash"
    if name in {".", ".."}:
        return f"it contains {name!r}"
    if name.endswith("."):
        return "a name ends in a dot"
    if any(ord(char) < 32 or ord(char) == 127 for char in name):
        return "it contains NUL or another control character"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"a name is longer than {MAX_NAME_BYTES} bytes"
    return None


def _has_openat2(fd: int) -> bool:
    try:
        os.close(linux.openat2(".", _FOLDER, 0, linux.RESOLVE_BENEATH, dir_fd=fd))
    except OSError:
        return False
    return True


def _enter(at: int, name: str, path: str, *, create: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=at)
    except FileNotFoundError:
        if not create:
            raise
    except OSError as exc:
        raise _explained(exc, path) from exc
    with suppress(FileExistsError):  # another process was quicker; what it is shows when it is opened
        os.mkdir(name, 0o755, dir_fd=at)
    os.fsync(at)
    try:
        return os.open(name, _FOLDER, dir_fd=at)
    except OSError as exc:
        raise _explained(exc, path) from exc


def _explained(exc: OSError, path: str) -> OSError | PathEscape:
    if exc.errno in {errno.ELOOP, errno.ENOTDIR, errno.EXDEV}:
        return PathEscape(path, "a name on the way is a symbolic link or is not a folder")
    return exc


def _sort_of(mode: int) -> str:
    sorts = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
    }
    return sorts.get(stat.S_IFMT(mode), "a device")

"""The database file: where it may stand and how it comes into being, and the folder beside it."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from tenure.errors import AccessDenied, ConfigError, DiskFull, ReadOnly, StoreUnavailable

_MOUNTS: Final = Path("/proc/self/mountinfo")

# WAL keeps its index in shared memory: all users of the file must run on one machine, under one kernel.
NETWORK_KINDS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gfs", "gfs2"}
    | {"ocfs2", "beegfs", "pvfs2", "orangefs", "coda", "ncpfs", "virtiofs", "vboxsf", "davfs", "sshfs", "webdav"}
)


def path_of(url: str) -> Path:
    """The absolute path in `sqlite:///relative.db` or `sqlite:////absolute.db`."""
    prefix = "sqlite:///"
    name = url.removeprefix(prefix).partition("?")[0]
    if not url.startswith(prefix) or not name or name.endswith("/"):
        raise ConfigError(
            f"{url!r} names no SQLite file. Write sqlite:///jobs.db for a file in this folder, "
            "sqlite:////var/lib/jobs.db for a full path."
        )
    if name == ":memory:":
        raise ConfigError("A queue in memory would lose accepted jobs. Name a file, as in sqlite:///jobs.db.")
    folder, _, last = name.rpartition("/")
    return Path(os.path.realpath(folder or ("/" if name.startswith("/") else "."))) / last


def check(path: Path) -> None:
    """Raise unless the file may stand there and, if it does, this user may write it. Creates nothing."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder. Name a file in it, as in sqlite:///{path}/jobs.db.")
    if not path.parent.is_dir():
        raise StoreUnavailable(
            f"The folder {path.parent} does not exist. Create it, or name another place for {path.name}."
        )
    refuse_network(path.parent)
    refuse_foreign(path)
    if not path.exists():
        return
    if not os.access(path, os.R_OK):
        raise AccessDenied(f"This user may not read {path}. Check owner and mode of the file.")
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        raise ReadOnly(
            f"{path} cannot be written by this user. Check the mode of the file and its folder, and the mount."
        )


def not_there(path: Path) -> StoreUnavailable:
    """The error for a file that does not exist yet."""
    return StoreUnavailable(
        f"There is no database file {path}. Check the URL, or create it with `tenure migrate --url sqlite:///{path}`."
    )


def refuse_foreign(path: Path) -> None:
    """Raise AccessDenied if another user could have put the file there, or could put another in its place.

    A link is refused too: it may have been made by another user, and it would lead around the protection that the
    kernel gives shared folders.
    """
    folder = path.parent.stat()
    if folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX:
        raise AccessDenied(
            f"Every user may write to the folder {path.parent}, so any of them could replace {path.name}. "
            f"Take that right away (chmod o-w {path.parent}), or use a folder of your own."
        )
    try:
        seen = os.lstat(path)
    except OSError:
        return
    if stat.S_ISLNK(seen.st_mode):
        raise AccessDenied(f"{path} is a symbolic link. Name the file that it leads to: {os.path.realpath(path)}.")
    if not stat.S_ISREG(seen.st_mode):
        raise ConfigError(f"{path} is no plain file. Name another file.")
    if seen.st_mode & stat.S_IWOTH:
        raise AccessDenied(f"Every user may write to {path}. Make it your own: chmod 600 {path}.")
    is_shared = seen.st_mode & stat.S_IWGRP and seen.st_gid in {os.getegid(), *os.getgroups()}
    if seen.st_uid not in {os.geteuid(), 0} and not is_shared:
        raise AccessDenied(
            f"{path} belongs to another user (number {seen.st_uid}). Run as that user, or make the file your own: "
            f"chown {os.geteuid()} {path}."
        )


def refuse_network(folder: Path) -> None:
    """Raise ConfigError if the folder lies on a filesystem that machines share."""
    kind = filesystem_kind(folder)
    if kind in NETWORK_KINDS or kind.startswith("fuse.") or kind == "fuse":
        raise ConfigError(
            f"{folder} lies on a {kind} filesystem. SQLite's WAL works only among processes of one machine and "
            "would damage "
            f"the file there. Use a local disk, or PostgreSQL if several machines share the queue."
        )


def filesystem_kind(folder: Path) -> str:
    """The name of the filesystem as the kernel gives it; empty where that cannot be learnt."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        device = folder.stat().st_dev
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    kind, deepest = "", -1
    for line in lines:
        fields, _, tail = line.partition(" - ")
        parts = fields.split(" ")
        point = parts[4].replace("\\040", " ")
        inside = point == "/" or folder == Path(point) or Path(point) in folder.parents
        # By device first: a bind mount shows a folder under a path that is not its own. Btrfs has device numbers of
        # its own, so the path decides there.
        if inside and len(point) + (1000 if parts[2] == wanted else 0) > deepest:
            kind, deepest = tail.split(" ")[0], len(point) + (1000 if parts[2] == wanted else 0)
    return kind


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def create(path: Path) -> None:
    """Make an empty file with mode 0600, unless one is there: that one is left as it is.

    The folder is synced afterwards: without that, a power cut could take the whole file with it.
    """
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except FileExistsError:  # another process was faster
        return
    except PermissionError as exc:
        raise AccessDenied(f"This user may not create {path}. Check owner and mode of {path.parent}.") from exc
    except OSError as exc:
        if exc.errno == 28:
            raise DiskFull(f"The disk that holds {path.parent} is full: {path.name} was not created.") from exc
        if exc.errno == 30:
            raise ReadOnly(f"{path.parent} is mounted read-only: {path.name} was not created.") from exc
        raise StoreUnavailable(f"{path} could not be created: {exc.strerror}.") from exc
    try:
        os.fchmod(handle, 0o600)  # whatever the umask says
    finally:
        os.close(handle)
    with contextlib.suppress(PermissionError):
        sync_folder(path.parent)


def side_folder(path: Path) -> Path | None:
    """A folder beside the file for sockets and locks, which only this user may enter. None if it cannot be had."""
    folder = side_folder_path(path)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        seen = os.lstat(folder)
    except OSError:
        return None
    return folder if is_private(seen) else None


def side_folder_path(path: Path) -> Path:
    """Where that folder stands."""
    return path.with_name(f"{path.name}-tenure")


def is_private(seen: os.stat_result) -> bool:
    """Whether it is a folder of this user that no other may enter."""
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid() and not seen.st_mode & 0o077

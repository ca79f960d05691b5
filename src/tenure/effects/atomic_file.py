"""Write or delete one file so that no reader ever sees half of it, and no late worker undoes a newer one.

The model. An attempt is named by its job and its token. Before it may touch the target it owns a *ticket* in the
same folder, `.tenure-<job>.<token>.<path hash>.tmp`: for a write the finished new content, for a delete an
empty folder. The one act that counts is a rename that needs the ticket:

    write    rename(ticket, target)             the content is whole and on disk before
    delete   rename(target, ticket/victim)      the name is gone in one step; the rest is tidying up

In front of it stands `check()`, which asks the store whether the lease still holds. Between that answer and the
rename an attempt can be paused for any time: no check can close that gap. The ticket does. The order is

    older attempt:   make ticket → check → rename
    newer attempt:   claim (token rises) → remove the older tickets → make own ticket → check → rename

If the older check came after the newer claim, it failed. If it came before, then its ticket existed before the
claim, so the newer attempt has removed it, or the rename came first and the newer content went over it. A zombie
that wakes up after the newer attempt's removal finds no ticket and its rename fails with ENOENT: `Superseded`. In
no order does older content land on newer. An attempt removes only tickets with a smaller token (or its own, of an
earlier try), so a zombie that wakes up before its first step can't take away what a newer attempt needs.

Killed anywhere, the target is absent, old, or new and whole, and at most a ticket is left; the next attempt of
the job removes it. Tokens count up from one, so the older tickets have known names: the first attempt looks for
none, and folders with many files are not listed. What no attempt will come back for (cancelled jobs, dead
letters) falls to `sweep_temp`, which thereby also disarms a zombie of such a job.

Two different jobs that write one path are ordered by their renames alone: tokens of two jobs can't be compared.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta

from tenure.errors import HandlerError, LeaseLost, UsageError
from tenure.model.frozen import frozen
from tenure.sandbox.safe_path import Folder, PathEscape, Root, split

_PREFIX = ".tenure-"
_JOB = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TICKET = re.compile(r"\.tenure-(?P<job>[A-Za-z0-9_-]{1,64})\.(?P<token>\d{1,19})\.[0-9a-f]{16}\.tmp")
_VICTIM = "victim"
_CHUNK = 1 << 20
_KNOWN_NAMES = 64  # with more older tokens than this, listing the folder is cheaper than trying each name


class FileConflict(UsageError):
    """The target holds other content and overwriting was not asked for. Repeating the job can't help."""

    code = "file_conflict"
    exit_code = 4


class FileMissing(UsageError):
    """The file to delete is not there although the job requires it."""

    code = "file_missing"
    exit_code = 3


class Superseded(LeaseLost):
    """A newer attempt of the same job took this attempt's ticket away. The target was not touched."""


class BadTag(HandlerError):
    """The name of an attempt can't be part of a file name."""


@frozen
class Tag:
    """Which attempt is at work: the job, and the token it was granted."""

    job: str
    token: int

    def __post_init__(self) -> None:
        if not _JOB.fullmatch(self.job) or self.token < 0:
            raise BadTag(
                f"Tag {self.job!r}, {self.token}: a job id is 1 to 64 letters, digits, - or _; a token is >= 0."
            )


@frozen
class FileRecord:
    """What was written, for the ledger and for reconciliation."""

    sha256: str
    size: int
    written: bool  # False: the right content was there already


@frozen
class DeleteRecord:
    """Whether this job removed the file, in this attempt or an earlier one; False: it was not there."""

    deleted: bool


def write_file(
    root: Root, path: str, content: bytes, *, overwrite: bool, check: Callable[[], None], tag: Tag, mode: int = 0o644
) -> FileRecord:
    """Make `path` hold `content`, whole and on disk. Atomic; safe to repeat by any attempt of the job.

    Args:
        check: Called right before the rename; raises when the lease is lost.

    Raises:
        FileConflict: Other content is there and `overwrite` is off.
        Superseded: A newer attempt took over between the check and the rename.
        PathEscape: The path leaves the root or names something that is not a plain file.
    """
    _reserve(path)
    digest = hashlib.sha256(content).hexdigest()
    with root.parent(path, create=True) as (folder, name):
        ticket = _ticket(path, tag)
        _remove_older(folder, path, tag)
        if _holds(folder, name, content, digest):
            return FileRecord(digest, len(content), written=False)
        if not overwrite and folder.stat_regular(name) is not None:
            raise _conflict(path)
        try:
            _fill(folder, ticket, content, mode)
            check()
            written = _put(folder, ticket, name, path, content, digest, overwrite=overwrite)
        finally:
            _remove(folder, ticket)
        folder.sync()
    return FileRecord(digest, len(content), written=written)


def delete_file(
    root: Root,
    path: str,
    *,
    require_exists: bool,
    check: Callable[[], None],
    tag: Tag,
    confirm: Callable[[], None] | None = None,
) -> DeleteRecord:
    """Remove the plain file `path`, on disk. Atomic; safe to repeat by any attempt of the job.

    Args:
        check: Called right before the file goes; raises when the lease is lost.
        confirm: Called when the file is gone for good and the ticket still stands: the place to record the effect.
            An attempt killed before this call leaves its ticket, so the next one knows that the job did it; one
            killed after it may leave a ticket for `clear_tickets`.

    Raises:
        FileMissing: There is no such file, `require_exists` is on, and no earlier attempt of the job removed it.
        Superseded: A newer attempt took over between the check and the delete.
    """
    _reserve(path)
    with ExitStack() as stack:
        try:
            folder, name = stack.enter_context(root.parent(path))
        except FileNotFoundError:
            if require_exists:
                raise _missing(path) from None
            return DeleteRecord(deleted=False)
        tried = any(folder.inode(ticket) for ticket in _older(folder, path, tag))
        there = folder.stat_regular(name) is not None
        gone = there and _take(folder, name, path, check, tag)
        if require_exists and not gone and not tried:
            _remove(folder, _ticket(path, tag))
            raise _missing(path)
        if confirm is not None and (gone or tried):
            confirm()
        _remove_older(folder, path, tag)
        folder.sync()
    return DeleteRecord(deleted=gone or tried)


def clear_tickets(root: Root, path: str, tag: Tag) -> None:
    """Remove what earlier attempts left beside `path`, for an attempt that finds the effect already confirmed."""
    with suppress(FileNotFoundError), root.parent(path) as (folder, _):
        _remove_older(folder, path, tag)


def sweep_temp(
    root: Root, folder: str = "", *, job: str | None = None, older_than: timedelta | None = None
) -> tuple[str, ...]:
    """Remove tickets left in one folder: those of a job that ended, or those not touched for `older_than`.

    Both given, both must hold. Returns the names removed. Only for jobs that no attempt runs any more.
    """
    if job is None and older_than is None:
        raise BadTag("sweep_temp needs `job` or `older_than`: without either it would take tickets of live attempts.")
    removed = []
    with root.folder(split(folder) if folder else ()) as at:
        for name in at.names():
            parts = _TICKET.fullmatch(name)
            if parts and (job is None or parts["job"] == job) and _is_older(at, name, older_than):
                _remove(at, name)
                removed.append(name)
    return tuple(sorted(removed))


def _reserve(path: str) -> None:
    if any(name.startswith(_PREFIX) for name in split(path)):
        raise PathEscape(path, f"names that start with {_PREFIX!r} are kept for unfinished writes")


def _ticket(path: str, tag: Tag, token: int | None = None) -> str:
    where = hashlib.sha256(path.encode()).hexdigest()[:16]
    return f"{_PREFIX}{tag.job}.{tag.token if token is None else token}.{where}.tmp"


def _older(folder: Folder, path: str, tag: Tag) -> list[str]:
    """Tickets of this job and path that earlier attempts, or an earlier try of this one, may have left."""
    if tag.token <= _KNOWN_NAMES:
        return [_ticket(path, tag, token) for token in range(tag.token + 1)]
    where = _ticket(path, tag).rsplit(".", 2)[1]
    parts = [found for name in folder.names() if (found := _TICKET.fullmatch(name))]
    return [
        found.string
        for found in parts
        if found["job"] == tag.job and int(found["token"]) <= tag.token and found.string.rsplit(".", 2)[1] == where
    ]


def _remove_older(folder: Folder, path: str, tag: Tag, *, keep: str | None = None) -> None:
    for name in _older(folder, path, tag):
        if name != keep:
            _remove(folder, name)


def _remove(folder: Folder, name: str) -> None:
    """Remove a ticket, file or folder, wherever its attempt stands. Idempotent."""
    for _ in range(100):
        try:
            folder.unlink(name)
            return
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):  # EPERM is what POSIX says for a folder
            pass
        with suppress(FileNotFoundError), folder.subfolder(name, create=False) as inside:
            inside.unlink(_VICTIM)
        try:
            folder.rmdir(name)
            return
        except FileNotFoundError:
            return
        except OSError as exc:
            if exc.errno not in {errno.ENOTEMPTY, errno.EEXIST}:  # else a zombie moved its file in just now: again
                raise
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)


def _holds(folder: Folder, name: str, content: bytes, digest: str) -> bool:
    """Whether the file is there with this content. If so it is put on disk: an earlier attempt may have died before."""
    found = folder.stat_regular(name)
    if found is None or found.st_size != len(content):
        return False
    try:
        fd = folder.open_regular(name)
    except FileNotFoundError:
        return False
    try:
        seen = hashlib.sha256()
        while chunk := os.read(fd, _CHUNK):
            seen.update(chunk)
        if seen.hexdigest() != digest:
            return False
        os.fsync(fd)
    finally:
        os.close(fd)
    folder.sync()
    return True


def _fill(folder: Folder, ticket: str, content: bytes, mode: int) -> None:
    fd = folder.create(ticket, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view[:_CHUNK]) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def _put(folder: Folder, ticket: str, name: str, path: str, content: bytes, digest: str, *, overwrite: bool) -> bool:
    try:
        folder.rename(ticket, name, replace=overwrite)
    except FileNotFoundError as exc:
        raise _superseded(path) from exc
    except FileExistsError as exc:
        if _holds(folder, name, content, digest):
            return False
        raise _conflict(path) from exc
    except IsADirectoryError as exc:
        raise PathEscape(path, "there is a folder of that name") from exc
    return True


def _take(folder: Folder, name: str, path: str, check: Callable[[], None], tag: Tag) -> bool:
    """Move the file into a ticket of our own; False if another process removed it first."""
    ticket = _ticket(path, tag)
    try:
        with folder.subfolder(ticket) as inside:
            folder.sync()
            # Only now may the older tickets go: killed in between, one of them still tells that the job was here.
            _remove_older(folder, path, tag, keep=ticket)
            check()
            return _move_in(folder, inside, ticket, name)
    except FileNotFoundError as exc:
        raise _superseded(path) from exc
    except BaseException:
        _remove(folder, ticket)
        raise


def _move_in(folder: Folder, inside: Folder, ticket: str, name: str) -> bool:
    try:
        os.rename(name, _VICTIM, src_dir_fd=folder.fd, dst_dir_fd=inside.fd)
    except FileNotFoundError:  # the file or the ticket: the ticket tells which
        if folder.inode(ticket) != os.fstat(inside.fd).st_ino:
            raise
        return False
    folder.sync()
    return True


def _is_older(folder: Folder, name: str, age: timedelta | None) -> bool:
    if age is None:
        return True
    try:
        touched = os.stat(name, dir_fd=folder.fd, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return False
    return touched < time.time() - age.total_seconds()


def _conflict(path: str) -> FileConflict:
    return FileConflict(
        f"File {path!r} holds other content and was left as it is, because the job does not allow overwriting. "
        "Enqueue it with overwrite, or with another path."
    )


def _missing(path: str) -> FileMissing:
    return FileMissing(
        f"File {path!r} could not be deleted, because it is not there and the job requires that it exists. "
        "Check the path, or enqueue the job without that requirement."
    )


def _superseded(path: str) -> Superseded:
    return Superseded(
        f"File {path!r} was left to a newer attempt of this job, because this one lost its lease while it was about "
        "to act. Nothing was changed; the newer attempt settles the job."
    )

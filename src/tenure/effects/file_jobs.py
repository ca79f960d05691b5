"""`create_file` and `delete_file`: files beneath one root, written and removed in one step, safe to repeat.

How a crash or a late worker is kept from doing harm is told in `atomic`; here it becomes two kinds of job.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.effects.atomic_file import FileConflict, FileMissing, Tag, clear_tickets, delete_file, write_file
from tenure.effects.kinds import Finding, Host, Terms, fence, give_up, register
from tenure.errors import ConfigError, LeaseLost
from tenure.handler.context import Context
from tenure.handler.ledger import LedgerRow
from tenure.handler.signals import Permanent
from tenure.model.frozen import frozen
from tenure.model.job import Job
from tenure.model.outcome import EffectRecord
from tenure.sandbox.safe_path import PathEscape, Root

if TYPE_CHECKING:
    from tenure.effects.payloads import CreateFile, DeleteFile

FILE_BYTES = 16 << 20
_CHUNK = 1 << 20


class Place:
    """A root folder, opened when it is first needed and kept open."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._root: Root | None = None
        self._lock = threading.Lock()

    @property
    def scope(self) -> str:
        """The folder that paths are in, however it is spelled."""
        return f"folder {self.path.resolve()}"

    @property
    def root(self) -> Root:
        """The open root. Raises: ConfigError if it is not there."""
        with self._lock:
            if self._root is None:
                try:
                    self._root = Root(self.path)
                except OSError as exc:
                    raise ConfigError(
                        f"The folder {str(self.path)!r}, set as root for files, cannot be opened: {exc.strerror}. "
                        "Create it, or set another root."
                    ) from exc
            return self._root


@frozen
class Files:
    """The kit of `create_file` and `delete_file`."""

    place: Place
    create_kind: str
    delete_kind: str
    terms: Terms
    max_bytes: int
    kinds: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", (self.create_kind, self.delete_kind))

    def install(self, app: Host) -> None:
        """Called by `app.use`."""
        register(app, self.create_kind, self.create, _create_type, self.terms)
        register(app, self.delete_kind, self.delete, _delete_type, self.terms)
        app.registry.checkers.append(self)

    def create(self, payload: CreateFile, ctx: Context) -> dict[str, Any]:
        """Write the file. A conflict or a path that leads out is for good; a full disk is not."""
        content = payload.data()
        if len(content) > self.max_bytes:
            raise Permanent(f"The content takes {len(content):,} bytes, and files here may have {self.max_bytes:,}.")
        with refusals():
            record = write_file(
                self.place.root,
                payload.path,
                content,
                overwrite=payload.overwrite,
                check=fence(ctx),
                tag=Tag(ctx.id, ctx.token),
                mode=payload.mode,
            )
        return {"path": payload.path, "sha256": record.sha256, "size": record.size, "written": record.written}

    def delete(self, payload: DeleteFile, ctx: Context) -> dict[str, Any]:
        """Remove the file. That this job did it is recorded, so that a repeat does not miss it."""
        root, tag = self.place.root, Tag(ctx.id, ctx.token)
        if payload.requireExists and _recorded(ctx, "intended").state == "confirmed":
            clear_tickets(root, payload.path, tag)
            return {"path": payload.path, "deleted": True}
        confirm = (lambda: _confirmed(ctx)) if payload.requireExists else None
        with refusals():
            record = delete_file(
                root,
                payload.path,
                require_exists=payload.requireExists,
                check=fence(ctx),
                tag=tag,
                confirm=confirm,
            )
        return {"path": payload.path, "deleted": record.deleted}

    @property
    def scope(self) -> str:
        """See Checker."""
        return self.place.scope

    def subject(self, job: Job) -> str | None:
        """See Checker."""
        path = job.payload.get("path") if isinstance(job.payload, dict) else None
        return path if isinstance(path, str) and isinstance(job.result, dict) else None

    def check(self, job: Job) -> Finding | None:
        """See Checker."""
        if job.kind == self.delete_kind:
            return is_gone(self.place.root, job.payload["path"])
        return holds(self.place.root, job.payload["path"], str(job.result.get("sha256")))


def files(
    root: Path | str,
    *,
    queue: str = "files",
    create_kind: str = "create_file",
    delete_kind: str = "delete_file",
    max_bytes: int = FILE_BYTES,
    max_attempts: int | None = None,
) -> Files:
    """Kinds that write and delete files beneath `root`, for `app.use(files(root="data"))`.

    Paths in payloads are relative and never leave the root, whatever links are in it. Several roots need names of
    their own for the kinds.
    """
    return Files(Place(root), create_kind, delete_kind, Terms(queue, max_attempts=max_attempts), max_bytes)


@contextmanager
def refusals() -> Iterator[None]:
    """What no repeat can help ends the job at once."""
    try:
        yield
    except (FileConflict, FileMissing, PathEscape) as exc:
        give_up(exc)


def holds(root: Root, path: str, sha256: str) -> Finding | None:
    """None if the file is there with this content."""
    expected = f"a file with SHA-256 {sha256}"
    try:
        fd = root.open_regular(path)
    except FileNotFoundError:
        return Finding("missing", path, expected, "nothing")
    except PathEscape as exc:
        return Finding("not_a_file", path, expected, str(exc))
    except OSError as exc:
        return Finding("unreadable", path, expected, f"{type(exc).__name__}: {exc.strerror}")
    try:
        seen = hashlib.sha256()
        while chunk := os.read(fd, _CHUNK):
            seen.update(chunk)
    finally:
        os.close(fd)
    if seen.hexdigest() == sha256:
        return None
    return Finding("changed", path, expected, f"a file with SHA-256 {seen.hexdigest()}")


def is_gone(root: Root, path: str) -> Finding | None:
    """None if there is nothing of that name."""
    try:
        found = root.stat(path)
    except PathEscape as exc:
        return Finding("still_there", path, "nothing", str(exc))
    except OSError as exc:
        return Finding("unreadable", path, "nothing", f"{type(exc).__name__}: {exc.strerror}")
    return None if found is None else Finding("still_there", path, "nothing", f"a file of {found.st_size} bytes")


def _recorded(ctx: Context, state: str) -> LedgerRow:
    record = ctx.services.record
    row = None if record is None else record(ctx, EffectRecord("delete", state))
    if row is None:
        raise LeaseLost(f"Job {ctx.id}: the file was left to a newer attempt, because the lease has ended.")
    return row


def _confirmed(ctx: Context) -> None:
    _recorded(ctx, "confirmed")


def _create_type() -> Any:
    from tenure.effects.payloads import CreateFile

    return CreateFile


def _delete_type() -> Any:
    from tenure.effects.payloads import DeleteFile

    return DeleteFile

"""From SQLite's result codes to our errors: the one place where the driver's errors are known."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Final

from tenure.errors import (
    AccessDenied,
    Corrupt,
    DiskFull,
    InternalError,
    InvalidArgument,
    InvalidPayload,
    ReadOnly,
    SchemaBehind,
    StoreBusy,
    StoreMoved,
    StoreUnavailable,
    TenureError,
    UnknownQueue,
)

BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
"""Another connection holds the lock: wait and try again."""

BROKEN: Final = frozenset(
    {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN}
)
"""The handle is not to be trusted any more: close it, open anew, check the file."""

MOVED: Final = "tenure moved: "
"""Begins the text of the triggers that refuse writes to a file that is, or was, moved."""

_CONSTRAINTS: Final = {
    "queue_name_not_blank": "a queue's name must not be blank, nor longer than 200 characters",
    "queue_numbers_sound": "a queue's numbers must make sense: max_attempts and limits at least 1, durations not "
    "negative, "
    "lease_max_seconds not below lease_seconds",
    "queue_embedding_keeps_none": "queue 'embedding' keeps no agent events: its jobs embed them, and would never end",
    "agent_event_named": "an agent event must name its agent and its kind",
    "memory_named": "a memory must have an agent, a kind and a text",
    "job_payload_is_json": "payload must be JSON",
    "job_backoff_is_json": "backoff must be JSON",
    "job_progress_is_json": "progress must be JSON",
    "job_result_is_json": "result must be JSON",
    "event_data_is_json": "an event's data must be JSON",
    "effect_values_are_json": "an effect's args and result must be JSON",
    "worker_info_is_json": "a worker's info must be JSON",
    "worker_numbers_32_bits": "a worker's pid and concurrency must fit into 32 bits",
    "queue_numbers_32_bits": "a queue's whole numbers must fit into 32 bits",
    "job_kind_not_blank": "kind must not be blank, longer than 200 characters, or hold control characters",
    "job_actor_not_blank": "actor must not be blank; leave it out if no one is to be named",
    "job_attempts_sound": "max_attempts must be at least 1",
    "job_priority_32_bits": "priority must fit into 32 bits",
    "schedule_name_not_blank": "a schedule's name must not be blank, nor longer than 200 characters",
    "schedule_spec_is_json": "a schedule's spec must be JSON",
    "worker_id_not_blank": "a worker's id must not be blank",
    "worker_executor_kind_known": "the worker's profile_kind is not one of the known executor kinds",
    "worker_status_known": "a worker's status must be ok, warn or error",
    "effect_state_known": "an effect's state must be intended, sent, confirmed, failed or unknown",
}


def primary_code(error: sqlite3.Error) -> int:
    """The primary result code, 0 if the driver raised the error itself."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Whether trying again soon may do."""
    return primary_code(error) in BUSY


def is_broken(error: BaseException) -> bool:
    """Whether the connection must be thrown away."""
    return isinstance(error, sqlite3.Error) and primary_code(error) in BROKEN


def translate(error: Exception, path: Path) -> Exception:
    """What we raise instead. Errors that are ours already come back as they are."""
    if isinstance(error, TenureError):
        return error
    if isinstance(error, UnicodeEncodeError):
        return InvalidArgument(
            "A text in the request holds half of a surrogate pair, which is no character. Nothing was changed."
        )
    if isinstance(error, OverflowError):
        return InvalidArgument(f"A number in the request does not fit into 64 bits ({error}). Nothing was changed.")
    if not isinstance(error, sqlite3.Error):
        return error
    made = _by_code(error, path)
    made.__cause__ = error
    return made


def _by_code(error: sqlite3.Error, path: Path) -> TenureError:
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    detail = f"(SQLite: {error}; {name})"
    match primary_code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return busy(path, detail)
        case sqlite3.SQLITE_FULL:
            return DiskFull(
                f"The disk that holds {path} is full, so nothing was changed. Free some space, then repeat. {detail}"
            )
        case sqlite3.SQLITE_READONLY:
            return ReadOnly(
                f"{path} cannot be written, so nothing was changed. Check the mode of the file and its folder, and how "
                f"its disk is mounted. {detail}"
            )
        case sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return AccessDenied(
                f"This user may not use {path}. Check owner and mode of the file and its folder. {detail}"
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return Corrupt(
                f"{path} is damaged or is not a SQLite database. Stop all workers, keep a copy of it with its "
                "-wal file, "
                f"then restore a backup or try `sqlite3 {path} .recover`. {detail}"
            )
        case sqlite3.SQLITE_CANTOPEN:
            return StoreUnavailable(
                f"{path} cannot be opened. Check that its folder exists and that this user may read and write it. "
                f"{detail}"
            )
        case sqlite3.SQLITE_IOERR:
            return StoreUnavailable(
                f"Reading or writing {path} failed in the operating system; the outcome is unknown, so repeat the "
                "call. "
                f"The file is checked before it is used again. {detail}"
            )
        case sqlite3.SQLITE_CONSTRAINT:
            return _constraint(str(error))
        case sqlite3.SQLITE_TOOBIG:
            return InvalidArgument(
                f"A value in the request is larger than SQLite can hold. Nothing was changed. {detail}"
            )
        case _:
            return _other(str(error), path, detail)


def busy(path: Path, detail: str) -> StoreBusy:
    """The lock was not to be had."""
    return StoreBusy(
        f"{path} stayed locked by another process, so nothing was changed. Repeat the call; if it goes on, look for a "
        f"program that keeps a write transaction open. {detail}"
    )


def _constraint(text: str) -> TenureError:
    if text.startswith(MOVED):
        return StoreMoved(text.removeprefix(MOVED))
    if "FOREIGN KEY" in text:
        return UnknownQueue("The queue does not exist in this database, so nothing was changed. Create it first.")
    rule = text.rpartition(": ")[2]
    said = _CONSTRAINTS.get(rule, f"the table's rule {rule!r} refuses it")
    return InvalidArgument(f"Nothing was changed: {said}.")


def _other(text: str, path: Path, detail: str) -> TenureError:
    if re.search(r"no such (table|column): \S*(tenure_|\w+\.)?\w+", text) or "has no column named" in text:
        return SchemaBehind(
            f"{path} lacks what this version of Tenure needs. Run `tenure migrate`, or let `tenure.App` do it. {detail}"
        )
    if "user-defined function raised exception" in text:
        return InvalidPayload("The payload is not JSON that can be hashed and searched, so nothing was changed.")
    if "closed database" in text:
        return StoreUnavailable(f"The store of {path} was closed. Make a new one. {detail}")
    return InternalError(f"SQLite refused a statement of Tenure's own on {path}. Please report it. {detail}")

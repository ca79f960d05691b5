"""The file: one JSON object, compressed by gzip, of a bounded size, with the version of its form.

A bundle comes by mail from strangers: what is read is bounded before it is parsed and checked before it is shown.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

from tenure import Approval, Attempt, Audit, Budget, DeadLetter, Effect, EscalationRow, Event, Job, Step, WorkflowRow
from tenure.bundle.record import read_record
from tenure.errors import ConfigError, IllegalMove, InvalidArgument
from tenure.model.approval import canonical
from tenure.model.frozen import frozen
from tenure.model.plain import plain
from tenure.model.redact import Redactor, process_redactor
from tenure.model.stream import Chunk

FORMAT: Final = "tenure-bundle"
VERSION: Final = 1
FILE_BYTES: Final = 32 << 20
"""No larger file is opened."""
TEXT_BYTES: Final = 64 << 20
"""No more is unpacked."""
DEPTH: Final = 100
"""No deeper nesting is read. Payloads have 64 levels at most."""


@frozen
class BundledStream:
    """One stream of the job with its text."""

    name: str
    last_offset: int
    bytes: int
    is_full: bool
    chunks: list[Chunk]


@frozen
class ChildJob:
    """A job whose parent this one is."""

    id: str
    kind: str
    queue: str
    state: str


@frozen
class Bundle:
    """One job with its whole history."""

    format: str
    version: int
    made_by: str
    """The version of Tenure that wrote it."""
    engine: str
    """sqlite or postgresql."""
    taken_at: datetime
    """By the store's clock."""
    is_redacted: bool
    is_changing: bool
    """The job moved on while it was read, each time: its parts may be from different moments."""
    left_out: Mapping[str, int]
    """By part: how many of its oldest entries are left out, because the part was too large."""
    job: Job
    attempts: list[Attempt]
    dead_letters: list[DeadLetter]
    effects: list[Effect]
    steps: list[Step]
    events: list[Event]
    """What became of the job, what its handler logged, what its process printed."""
    streams: list[BundledStream]
    children: list[ChildJob]
    workflow: WorkflowRow | None
    escalations: list[EscalationRow]
    audit: list[Audit]
    # Later than version 1's first files, which lack them.
    approvals: list[Approval] = field(default_factory=list)
    """What the job asked of people, with their votes."""
    budgets: list[Budget] = field(default_factory=list)
    """The budgets that concern the job: of all, of its queue, kind, tenant and workflow, and of itself."""


def redacted(bundle: Bundle) -> Bundle:
    """The same without secrets, by the rules that errors and logs are cleaned by."""
    redactor = process_redactor()
    hidden: dict[str, Any] = {}
    for part in fields(bundle):
        value = plain(getattr(bundle, part.name))
        if isinstance(value, list):
            hidden[part.name] = [redactor.data(one) for one in value]
        else:
            hidden[part.name] = redactor.data(value)
    hidden["approvals"] = [_without_arguments(plain(one), redactor) for one in bundle.approvals]
    return read_record(Bundle, hidden | {"is_redacted": True})


def _without_arguments(approval: Any, redactor: Redactor) -> Any:
    """An approval without secrets. Its arguments are JSON in a text, whose keys tell what is secret."""
    shown: Any = redactor.data({name: value for name, value in approval.items() if name != "args_text"})
    text = approval["args_text"]
    return shown | {"args_text": None if text is None else canonical(redactor.data(json.loads(text)))}


def encode(bundle: Bundle) -> bytes:
    """The content of the file. Raises: IllegalMove (too large to be opened again)."""
    text = json.dumps(plain(bundle), separators=(",", ":")).encode()
    packed = gzip.compress(text, mtime=0)
    if len(text) > TEXT_BYTES or len(packed) > FILE_BYTES:
        raise IllegalMove(
            f"Job {bundle.job.id} with its history takes {len(text) >> 20} MiB, and a bundle holds {TEXT_BYTES >> 20} "
            "MiB at most. Nothing was written. `tenure jobs show --json` has no such limit."
        )
    return packed


def write(path: Path, content: bytes, *, replaces: bool) -> None:
    """Write the file, whole or not at all, readable by its owner only.

    Raises: IllegalMove (it is there already), ConfigError (it cannot be written).
    """
    if path.exists() and not replaces:
        raise IllegalMove(f"{path} is there already and was left as it is. Name another file, or use --force.")
    name = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".bundle-", delete=False) as file:
            name = file.name
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError as exc:
        if name is not None:
            with suppress(OSError):
                Path(name).unlink()
        raise ConfigError(f"{path} could not be written: {exc.strerror}.") from exc


def read(path: Path) -> Bundle:
    """The bundle in a file. Raises: ConfigError (it cannot be read), InvalidArgument (it is no whole bundle)."""
    try:
        if not path.is_file():
            there = "is not a file" if path.exists() else "does not exist"
            raise ConfigError(f"{path} {there}. `tenure bundle JOB` writes a bundle.")
        with path.open("rb") as file:
            packed = file.read(FILE_BYTES + 1)
    except OSError as exc:
        raise ConfigError(f"{path} could not be read: {exc.strerror}.") from exc
    try:
        return decode(packed)
    except InvalidArgument as exc:
        raise InvalidArgument(f"{path} cannot be opened: {exc}") from exc


def decode(packed: bytes) -> Bundle:
    """The bundle in these bytes. Raises: InvalidArgument, which says what is wrong with them."""
    value = _parsed(_unpacked(packed))
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise InvalidArgument("it is no bundle. `tenure bundle JOB` writes one.")
    version = value.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InvalidArgument("it does not say which version of the form it has, so it was damaged or made by hand.")
    if version > VERSION:
        raise InvalidArgument(
            f"it has version {version} of the form, and this Tenure reads up to {VERSION}. Open it with a newer Tenure."
        )
    try:
        return read_record(Bundle, value)
    except InvalidArgument as exc:
        raise InvalidArgument(f"it was damaged or made by hand; {exc}.") from exc


def _unpacked(packed: bytes) -> bytes:
    if len(packed) > FILE_BYTES:
        raise InvalidArgument(f"it is larger than {FILE_BYTES >> 20} MiB, which no bundle is.")
    if not packed.startswith(b"\x1f\x8b"):
        raise InvalidArgument("it is no bundle: it is not compressed by gzip. `tenure bundle JOB` writes one.")
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            text = file.read(TEXT_BYTES + 1)
    except EOFError:
        raise InvalidArgument("it is cut short. Copy it again.") from None
    except (OSError, zlib.error) as exc:
        raise InvalidArgument(f"it is damaged ({exc}). Copy it again.") from exc
    if len(text) > TEXT_BYTES:
        raise InvalidArgument(f"unpacked it is larger than {TEXT_BYTES >> 20} MiB, which no bundle is.")
    return text


def _parsed(text: bytes) -> Any:
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as exc:
        raise InvalidArgument(f"its content is not JSON ({exc}), so it was damaged or made by hand.") from exc
    if _is_deeper(value, DEPTH):
        raise InvalidArgument(f"its content is nested deeper than {DEPTH} levels, which no bundle is.")
    return value


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _is_deeper(value: Any, depth: int) -> bool:
    """Level by level, so that no depth can overflow the stack."""
    level = [value]
    for _ in range(depth):
        level = [
            one
            for outer in level
            for one in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(one, dict | list)
        ]
        if not level:
            return False
    return True

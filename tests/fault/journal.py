"""What client processes write down outside the database, so that it survives their death.

One JSON line per record, one write each on a file opened for appending: a killed process leaves whole lines.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from tenure.model.ids import JobId
from tenure.model.job import Grant


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that a client did.

    op `enqueue`: type `invoke` before the call, `ok` when it was answered, `info` where the outcome is unknown.
    op `grant`: a job with its token was handed to the worker.
    op `lead`: the worker asked for the named lease `job`; `answer` is its name if it leads in term `token`.
    op `settle`: the worker's end of an attempt; `answer` is the state that was answered, None if the lease was lost.
    """

    op: str
    type: str
    worker: str
    job: JobId
    token: int = 0
    move: str = ""
    answer: str | None = None
    until: str = ""
    """Of a grant: when its lease was to end."""


def granted(worker: str, grant: Grant) -> Record:
    return Record("grant", "ok", worker, grant.id, grant.token, until=grant.lease_until.isoformat())


class Journal:
    """A file that many processes append to."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)

    def write(self, *records: Record) -> None:
        text = "".join(json.dumps(asdict(record)) + "\n" for record in records)
        os.write(self._file, text.encode())

    def close(self) -> None:
        os.close(self._file)


def read_journal(path: Path) -> list[Record]:
    """All records, in the order in which they were written."""
    if not path.exists():
        return []
    return [Record(**json.loads(line)) for line in path.read_text().splitlines()]

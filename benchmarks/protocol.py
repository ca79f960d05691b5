"""How the driver and one contender (a *side*) exchange JSON lines: one request a line, one answer a line.

A side is a process that reads requests on stdin and writes answers on stdout; its stderr is free for logs. The driver
starts a fresh side for every measurement, hands it a database, reads one answer and closes stdin. Everything that a
side starts (workers) belongs to its process group and is killed with it.

    → {"do": "hello"}
    ← {"ok": true, "peer": "huey", "version": "3.5.4", "settings": "…"}
    → {"do": "W3a", "engine": "sqlite", "url": "sqlite:////scratch/b.db", "folder": "/scratch", "jobs": 20000}
    ← {"ok": true, "jobs": 20000, "seconds": 0.61, "checked": true, "values": {"started_seconds": 0.58}}
    ← {"ok": false, "error": "19,998 of 20,000 jobs were run"}

`seconds` and `jobs` give the rate; `values` holds what else a workload is judged by. `checked` is true only when the
side looked into the store afterwards and found every job in the right state, in the right number: the driver throws
away an answer without it. `is_filled`: an earlier round has filled this store with its `backlog` rows.

Payload: `payload(i)`, about 200 bytes with the job's number in it. Handlers do nothing but `Tally.started(i)`.

W1    `jobs` enqueue calls one after another, each returning after its own commit. Timed: the calls.
W2    `jobs` in bulk calls of the size that suits the peer best. Timed: the calls.
W3a   `jobs` no-op jobs wait; one worker process. Timed: first handler start until all are acknowledged in the store.
      `values.started_seconds`: until the last handler start.
W3b   the same with two worker processes, let go together.
W4    one idle worker in another process; `jobs` single enqueues, the next one only after the last was started and a
      random pause. `values`: `p50_ms`, `p99_ms` from the return of the call to the handler start.
W5    `backlog` jobs wait; the first `jobs` handler starts are timed.
W5d   `backlog` jobs are due tomorrow, `jobs` are due now: timed as W3a.
W6    `backlog` finished jobs are in the store, then `jobs` are drained: timed as W5.
W7    PostgreSQL: another session holds a snapshot while two worker processes drain `jobs`; one in fifty of the first
      three quarters fails once. `values`: `first_rate`, `last_rate` (of the first and the last tenth).
W8    PostgreSQL: `clients` idle workers. `values`: `cpu_share` (of one core: all workers and the server), `p99_ms`.
W10   PostgreSQL: a session that began on empty tables, after `backlog` rows. `values`: `long_lived_rate`, `fresh_rate`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TextIO

PAYLOAD_BYTES = 200


@dataclass(frozen=True, slots=True)
class Request:
    """One measurement asked of a side."""

    do: str
    engine: str = ""
    url: str = ""
    folder: str = ""
    jobs: int = 0
    backlog: int = 0
    clients: int = 0
    is_filled: bool = False

    @classmethod
    def from_line(cls, line: str) -> Request:
        """Read a request; fields that this version does not know are left aside."""
        known = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in json.loads(line).items() if name in known})

    def to_line(self) -> str:
        """Give the request as one line of JSON."""
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a side found, or why it found nothing."""

    ok: bool
    jobs: int = 0
    seconds: float = 0.0
    checked: bool = False
    values: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    peer: str = ""
    version: str = ""
    settings: str = ""

    @classmethod
    def from_line(cls, line: str) -> Answer:
        """Read an answer; raises ValueError when the line is none."""
        raw: Any = json.loads(line)
        if not isinstance(raw, dict) or "ok" not in raw:
            raise ValueError(f"not an answer: {line[:200]!r}")
        known = {f.name for f in fields(cls)}
        picked = {name: value for name, value in raw.items() if name in known}
        return cls(**picked)

    def to_line(self) -> str:
        """Give the answer as one line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @property
    def rate(self) -> float:
        """Jobs a second; 0 where the workload is judged by `values` alone."""
        return self.jobs / self.seconds if self.seconds > 0 else 0.0


class Unsupported(Exception):
    """The peer has no such feature, or the machine does not allow the measurement."""


class CheckFailed(Exception):
    """The store does not hold what the workload must leave there, so the figure means nothing."""


def payload(i: int) -> dict[str, Any]:
    """Make job number `i`'s payload, the same for every contender."""
    return {"i": i, "pad": "x" * (PAYLOAD_BYTES - 20)}


def serve(answer: Callable[[Request], Answer]) -> None:
    """Answer requests from stdin until it ends; whatever libraries print goes to stderr instead of the protocol."""
    lines = _take_stdout()
    for line in sys.stdin:
        try:
            found = answer(Request.from_line(line))
        except Exception as exc:  # noqa: BLE001 - whatever a peer raises is an answer for the report
            traceback.print_exc(file=sys.stderr)
            found = Answer(ok=False, error=f"{type(exc).__name__}: {exc}"[:500])
        lines.write(found.to_line())
        lines.flush()


def _take_stdout() -> TextIO:
    """Keep the real stdout for answers and point descriptor 1 at stderr."""
    kept = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(kept, "w", encoding="utf-8")

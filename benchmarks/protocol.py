"""How the driver and one contender (a *side*) talk: JSON lines, one request a line, one answer a line.

A side is a process that reads requests on stdin and writes answers on stdout; its stderr is free for logs. The driver
starts a fresh side for every measurement, hands it a fresh database, reads one answer and closes stdin; the side then
ends by itself. Everything a side starts (workers) belongs to its process group and is gone when it ends.

    → {"do": "hello"}
    ← {"ok": true, "peer": "huey", "version": "3.5.4", "engines": ["sqlite"], "workloads": ["W1", …], "settings": "…"}
    → {"do": "W3a", "engine": "sqlite", "url": "sqlite:////scratch/b.db", "folder": "/scratch", "jobs": 20000}
    ← {"ok": true, "jobs": 20000, "seconds": 0.61, "checked": true, "values": {"started_seconds": 0.58}}
    ← {"ok": false, "error": "19,998 of 20,000 jobs were run", "unsupported": false}

`seconds` and `jobs` give the rate; `values` holds whatever else the workload is judged by. `checked` is true only when
the side looked into the store afterwards and found every job in the right state, in the right number: the driver
throws away an answer without it. `unsupported` says that the peer has no such feature, which is no failure.

Request fields: `do`, `engine` (postgres, sqlite, redis), `url`, `folder` (an empty scratch folder on the disk of the
database), `jobs`, `backlog` (rows put there beforehand: W5, W5d, W6, W10), `clients` (W1c, W8, W9), `earlier`: not
null if the store is the one of an earlier round (W5, W5d, W6: a million rows are filled in once), with the `values`
that were found then. Rows that the rounds before took away or left behind are few beside them.

What each workload asks of a side
---------------------------------
Payload: `payload(i)`, about 200 bytes with the job's number in it. Handlers do nothing but `Tally.started(i)`.

W1    `jobs` enqueue calls one after another, each returning after its own synced commit. Timed: the calls.
W1c   the same number by `clients` (50) concurrent enqueuers in one process.
W2    `jobs` in bulk calls of at most 1,000 (or the size that suits the peer best). Timed: the calls.
W3a   `jobs` no-op jobs wait; one worker process (async handlers). Timed: first handler start until all are
      acknowledged in the store. `values.started_seconds`: until the last handler start (W5 and W6 compare with it).
W3b   the same with two worker processes, let go together.
W3t   the same with one worker process and synchronous handlers in threads.
W4    one idle worker in another process; `jobs` single enqueues, the next one only after the last was started and a
      random pause. `values`: `p50_ms`, `p99_ms` (return of the call → handler start), `call_p50_ms` (its start).
W5    `backlog` jobs wait, the first `jobs` handler starts are timed (`seconds` = started_seconds); one worker process.
W5d   `backlog` jobs due tomorrow, at every priority, and `jobs` due ones: timed as W3a, one worker process.
      `values`: `idle_pages`, `idle_pages_empty` (pages that an idle claim touches over them / on an empty queue).
W6    `backlog` finished jobs are kept in the store, then `jobs` are drained; timed as W5.
W7    PostgreSQL: `jobs` wait at three priorities, another session holds a snapshot, two worker processes drain; one job
      in fifty of the first three quarters fails once. `values`: `first_rate`, `last_rate` (jobs/s of the first and the
      last tenth), `overdue_s` (how much later than its turn a job was first started, at worst).
W8    `clients` (200) idle workers on one PostgreSQL. `values`: `cpu_share` (of one core, all workers and the server
      together, over a minute, from a minute after the start on), `p99_ms` (wake-up). No `seconds`.
W9    `clients` (32) processes mixing enqueue, claim, heartbeat, settle. `values`: `errors`, `deadlocks`,
      `claim_p50_ms`, `claim_p99_ms`.
W10   a session that began on empty tables, after `backlog` rows; `values`: `long_lived_rate`, `fresh_rate`.
footprint   `values`: `idle_mb`, `backlog_mb` (resident memory of a worker: idle, and in W5 with `backlog`),
      `import_ms`, `help_ms`.

Tenure's own side
-----------------
`benchmarks/tenure_side.py` is run as `python -m benchmarks.tenure_side` with the project's own interpreter and appears
as the peer "tenure" on the engines postgres and sqlite. The shortest way to write it: subclass
`benchmarks.peers.harness.Side` (prepare, enqueue_each, enqueue_bulk, enqueuer, worker, unfinished, finished), which
brings W1, W2, W3a, W3b, W3t, W4, W5, W6 and W7; add the other workloads as methods named in `Side.own_workloads`,
and end the module with `main(TenureSide())`. Any other program that answers the lines above will do as well.
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
    earlier: Mapping[str, float] | None = None

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
    unsupported: bool = False
    peer: str = ""
    version: str = ""
    engines: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    settings: str = ""

    @classmethod
    def from_line(cls, line: str) -> Answer:
        """Read an answer; raises ValueError when the line is none."""
        raw: Any = json.loads(line)
        if not isinstance(raw, dict) or "ok" not in raw:
            raise ValueError(f"not an answer: {line[:200]!r}")
        known = {f.name for f in fields(cls)}
        picked = {name: value for name, value in raw.items() if name in known}
        for name in ("engines", "workloads"):
            picked[name] = tuple(picked.get(name, ()))
        return cls(**picked)

    def to_line(self) -> str:
        """Give the answer as one line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @property
    def rate(self) -> float:
        """Jobs a second; 0 where the workload is judged by `values` alone."""
        return self.jobs / self.seconds if self.seconds > 0 else 0.0


class Unsupported(Exception):
    """The peer has no such feature; said as a reason, not as a failure."""


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
        except Unsupported as exc:
            found = Answer(ok=False, error=str(exc), unsupported=True)
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

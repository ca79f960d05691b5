"""Grants on their way from the writer to whoever asked.

The writer's time is the scarcest: one thread writes for the whole process, and one process at a time to the file. So
the transaction only reads what the grants tell, as text; whoever asked takes that apart after the commit, on a thread
of its own, while the writer carries out the next request. The text is no JSON but parts between characters that no JSON
text has: SQLite writes it in a third of the time, and it is read in half.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from tenure.errors import GateClosed
from tenure.model.clock import from_us, to_us
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token, WorkerId
from tenure.model.job import NEW_JOB_EXTRAS, Grant
from tenure.model.outcome import Settled
from tenure.store.contract import Exchanged
from tenure.store.sqlite.transaction import Row

in_order: Final = itemgetter(0, 1, 2)
"""Claim order: by rank, run_at and id, the first columns of whatever reads jobs row by row."""
EXTRA_NAMES: Final = ("key", "progress", *NEW_JOB_EXTRAS)

_BETWEEN_JOBS: Final = "\x1e"
_BETWEEN_PARTS: Final = "\x1f"
_dump = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode


@frozen
class Terms:
    """What the grants of one queue have in common. `is_new`: they were read before the grant was written."""

    queue: str
    worker: WorkerId
    started: bool
    lease_until: int
    is_new: bool = True

    def values(self, now: int) -> dict[str, Any]:
        """What the statements that grant are given."""
        return {
            "queue": self.queue,
            "worker": self.worker,
            "state": "running" if self.started else "leased",
            "started_at": now if self.started else None,
            "lease_until": self.lease_until,
        }


@dataclass(slots=True)
class Granted:
    """The answer to a claim. `ready` are grants that are made already; `told` is what claim_pick.sql read of the
    others, in claim order, `rest` what claim_rest.sql added for some of them."""

    ready: list[Grant]
    told: str | None = None
    rest: Sequence[Row] = ()
    terms: Terms | None = None

    def finish(self) -> list[Grant]:
        """The grants, in claim order."""
        if self.told is None or self.terms is None:
            return self.ready
        return self.ready + _take_apart(self.told, self.rest, self.terms)


@dataclass(slots=True)
class LateExchanged:
    """The answer to an exchange, with grants on their way."""

    settled: dict[tuple[JobId, Token], Settled]
    granted: Granted
    refused: GateClosed | None = None
    is_shared: bool | None = None

    def finish(self) -> Exchanged:
        """The answer as the contract has it."""
        return Exchanged(self.settled, self.granted.finish(), self.refused, is_shared=self.is_shared)


def make(rows: Iterable[Row], rest: Iterable[Row], terms: Terms) -> list[Grant]:
    """Grants for rows of claim_read.sql, in their order. `rest`: rows of claim_rest.sql for those not whole."""
    queue, worker, started = terms.queue, terms.worker, terms.started
    until = from_us(terms.lease_until)
    rise = 1 if terms.is_new else 0
    grants = [
        Grant(
            job_id, queue, kind, token + rise, attempt + rise, most, payload, until, worker, priority, crashes, started
        )
        for _, _, job_id, kind, token, attempt, most, priority, crashes, payload in rows
    ]
    return _complete(grants, rest)


def _take_apart(told: str, rest: Iterable[Row], terms: Terms) -> list[Grant]:
    """Grants for the text that claim_pick.sql tells. What stands between id and payload is the same for most jobs, and
    read once."""
    queue, worker, started = terms.queue, terms.worker, terms.started
    until = from_us(terms.lease_until)
    rise = 1 if terms.is_new else 0
    read: dict[str, tuple[str, Token, int, int, int, int]] = {}
    grants = []
    for job in told.split(_BETWEEN_JOBS):
        parts: list[Any] = job.split(_BETWEEN_PARTS)  # to call JobId would take half as long as this
        job_id, common, payload = parts
        values = read.get(common)
        if values is None:
            kind, *numbers = common.rsplit(" ", 5)
            token, attempt, most, priority, crashes = map(int, numbers)
            values = read[common] = kind, Token(token + rise), attempt + rise, most, priority, crashes
        kind, held, attempt, most, priority, crashes = values
        grants.append(
            Grant(job_id, queue, kind, held, attempt, most, payload, until, worker, priority, crashes, started)
        )
    return _complete(grants, rest)


def _complete(grants: list[Grant], rest: Iterable[Row]) -> list[Grant]:
    if rest:
        by_id = {grant.id: grant for grant in grants}
        for job_id, payload, *extras in rest:
            grant = by_id[job_id]
            grant.payload_text = payload
            grant.extras = _extras(extras)
    return grants


def pack(grant: Grant) -> str:
    """A grant as text, for the process of the worker that it was given to."""
    values = (
        grant.id, grant.kind, grant.token, grant.attempt, grant.max_attempts, grant.payload_text,
        to_us(grant.lease_until), grant.priority, grant.crashes, grant.started, grant.extras,
    )  # fmt: skip
    return _dump(values)


def unpack(text: str, worker: WorkerId, queue: str) -> Grant:
    """The grant in such a text."""
    job_id, kind, token, attempt, most, payload, until, priority, crashes, started, extras = json.loads(text)
    return Grant(
        job_id, queue, kind, token, attempt, most, payload, from_us(until), worker, priority, crashes, started, extras
    )


def _extras(values: Sequence[Any]) -> dict[str, Any]:
    extras = {name: value for name, value in zip(EXTRA_NAMES, values, strict=True) if value is not None}
    for name in ("progress", "backoff"):
        if name in extras:
            extras[name] = json.loads(extras[name])
    return extras

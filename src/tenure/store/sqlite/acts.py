"""Which act answers which request: the whole of what this store can do, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tenure.store import base
from tenure.store import reading as asked
from tenure.store.sqlite import beat, claim, enqueue, expire, reading, settle
from tenure.store.sqlite.transaction import Transaction

Act = Callable[[Transaction, Any], Any]

WRITES: Final[Mapping[type, Act]] = {
    base.Enqueue: enqueue.enqueue,
    base.Claim: claim.claim,
    base.Settle: settle.settle,
    base.Exchange: settle.exchange,
    base.Heartbeat: beat.heartbeat,
    base.Start: beat.start,
    base.Reap: expire.reap,
}

READS: Final[Mapping[type, Act]] = {
    asked.GetJobs: reading.get_jobs,
}

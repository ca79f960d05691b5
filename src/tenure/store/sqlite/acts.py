"""Which act answers which request: the whole of what this store can do, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tenure.store import admin as ordered
from tenure.store import contract
from tenure.store import metrics as metered
from tenure.store import queries as asked
from tenure.store import schedules as timed
from tenure.store import summary as summed
from tenure.store.sqlite import (
    beat,
    claim,
    enqueue,
    exchange,
    expire,
    grants,
    ledger,
    metric,
    moves,
    operating,
    profiles,
    prune,
    reading,
    scheduling,
    settle,
    summary,
)
from tenure.store.sqlite.waiting import Act, AtOnce

WRITES: Final[Mapping[type, Act]] = {
    contract.Enqueue: enqueue.enqueue,
    contract.Claim: claim.claim,
    contract.Settle: settle.settle,
    contract.Exchange: exchange.exchange,
    contract.Heartbeat: beat.heartbeat,
    contract.Start: beat.start,
    contract.Wake: moves.wake,
    contract.Cancel: moves.cancel,
    contract.Revive: moves.revive,
    contract.Clone: moves.clone,
    contract.Reap: expire.reap,
    contract.Prune: prune.prune,
    ordered.TriageDeadLetters: operating.triage,
    ordered.SetQueues: operating.set_queues,
    ordered.PauseQueues: operating.pause_queues,
    ordered.SetGate: operating.set_gate,
    ordered.AcquireLease: operating.acquire_lease,
    ordered.ReleaseLease: operating.release_lease,
    ordered.RemoveWorkers: prune.remove_workers,
    ordered.AppendEvents: ledger.append_events,
    ordered.RecordEffect: ledger.record_effect,
    ordered.ResolveEffect: ledger.resolve_effect,
    metered.RollUp: metric.roll_up,
    timed.SetSchedules: scheduling.set_schedules,
    timed.TickSchedule: scheduling.tick_schedule,
    timed.PauseSchedules: scheduling.pause_schedules,
    timed.RemoveSchedules: scheduling.remove_schedules,
}

AT_ONCE: Final[Mapping[type, AtOnce]] = {
    contract.Claim: claim.claim_at_once,
    contract.Exchange: exchange.exchange_at_once,
}
"""Acts that may do without a transaction around them where no other request shares the commit. How an enqueue does is
up to the workers that wait: see `handover`."""

PREPARES: Final[Mapping[type, Callable[[Any], Any]]] = {
    contract.Settle: settle.sort,
    contract.Exchange: settle.sort,
}
"""What is done with a request before it goes to the writer, on the caller's own thread."""

LATE: Final = (grants.Granted, grants.LateExchanged)
"""Answers that their callers finish, on their own threads."""

LARGE: Final = 64
"""Jobs to settle or to claim."""


def is_large(request: Any) -> bool:
    """Whether a request fills a commit by itself: an exchange of a worker with much to do."""
    if type(request) is not contract.Exchange:
        return False
    return len(request.outcomes) >= LARGE or (request.claim is not None and request.claim.limit >= LARGE)


READS: Final[Mapping[type, Act]] = {
    asked.ListProfiles: profiles.list_profiles,
    asked.GetJobs: reading.get_jobs,
    asked.ListJobs: reading.list_jobs,
    asked.CountJobs: reading.count_jobs,
    asked.ListAttempts: reading.list_attempts,
    asked.ListDeadLetters: reading.list_dead_letters,
    asked.GroupDeadLetters: reading.group_dead_letters,
    asked.ListQueues: reading.list_queues,
    asked.ListGates: reading.list_gates,
    asked.ListWorkers: reading.list_workers,
    asked.ListEvents: reading.list_events,
    asked.ListAudit: reading.list_audit,
    asked.ListEffects: reading.list_effects,
    timed.ListSchedules: scheduling.list_schedules,
    metered.ListMetrics: metric.list_metrics,
    summed.Summary: summary.summarize,
    summed.Standing: summary.stand,
    summed.Inspect: summary.inspect,
    summed.Prunable: summary.count_prunable,
}

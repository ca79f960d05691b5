"""What operators and leaders do: gates, named leases, workers, retention.

Every change is recorded with its actor and reason.
"""

from __future__ import annotations

from tenure.client.operations import AsyncClient, Client, Steps, SyncClient, ask, operation
from tenure.errors import NotFound, nearest
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.model.ids import WorkerId
from tenure.model.outcome import Settled
from tenure.store.admin import (
    WORKER_GATE,
    AcquireLease,
    NamedLease,
    ReleaseLease,
    RemoveWorkers,
    SetGate,
)
from tenure.store.contract import Prune, Pruned, Reap
from tenure.store.queries import (
    Gate,
    ListGates,
    ListWorkers,
    WorkerSeen,
)


class Upkeep(Client):
    """Leases that ran out, and retention."""

    @operation
    def reap(self, limit: int = 1000) -> Steps[list[Settled]]:
        """Take back jobs whose lease ran out. Claims do so by themselves; any process may."""
        return (yield from ask(Reap(arguments.whole("limit", limit, 1, 10_000))))

    @operation
    def prune(
        self,
        *,
        limit: int = 1000,
        older_than: Duration | None = None,
        delete_after: Duration | None = None,
        worker_after: Duration = 86_400.0,
        metric_after: Duration = 2_592_000.0,
    ) -> Steps[Pruned]:
        """Retention, up to `limit` rows: payloads of ended jobs go, rows and dead letters stay.

        Workers not seen for `worker_after`, and minutes counted longer ago than `metric_after`, go too.

        `more` in the answer says to call again.
        """
        request = Prune(
            limit=arguments.whole("limit", limit, 1, 100_000),
            older_than_seconds=None if older_than is None else arguments.seconds("older_than", older_than),
            delete_after_seconds=None if delete_after is None else arguments.seconds("delete_after", delete_after),
            worker_seconds=arguments.seconds("worker_after", worker_after),
            metric_seconds=arguments.seconds("metric_after", metric_after),
        )
        return (yield from ask(request))


class Workers(Client):
    """Worker processes as the database knows them: `app.workers`."""

    @operation
    def all(self) -> Steps[list[WorkerSeen]]:
        """Workers that have a row, most recently seen first."""
        return (yield from ask(ListWorkers()))

    @operation
    def drain(self, worker_id: str, *, actor: str | None = None, reason: str | None = None) -> Steps[Gate]:
        """Give a worker no more jobs; it ends what it holds and stays. Closes the gate `worker:ID`, until `resume` or
        until the worker's row is removed, as it is when it stops. Raises: NotFound."""
        name = yield from _worker_gate(worker_id)
        return (yield from ask(SetGate(name, False, self._by(actor), reason)))

    @operation
    def resume(self, worker_id: str, *, actor: str | None = None, reason: str | None = None) -> Steps[Gate]:
        """Give a worker that was drained jobs again. Raises: NotFound."""
        name = yield from _worker_gate(worker_id)
        return (yield from ask(SetGate(name, True, self._by(actor), reason)))

    @operation
    def remove(self, ids: Names = (), *, unseen: Duration | None = None) -> Steps[list[WorkerId]]:
        """Remove the rows of workers, by id or by how long they were not seen. What they hold is taken back first."""
        chosen = [WorkerId(one) for one in arguments.names("ids", ids)]
        silent = None if unseen is None else arguments.seconds("unseen", unseen)
        return (yield from ask(RemoveWorkers(chosen, silent)))


def _worker_gate(worker_id: str) -> Steps[str]:
    """The gate of a worker that has a row. Raises: NotFound."""
    known = [seen.row.id for seen in (yield from ask(ListWorkers()))]
    if worker_id not in known:
        raise NotFound(
            f"There is no worker {worker_id!r}.{nearest(worker_id, known)} `tenure workers ls` lists them. Nothing was "
            "changed."
        )
    return f"{WORKER_GATE}{worker_id}"


class SyncWorkers(Workers, SyncClient):
    """`app.workers`."""


class AsyncWorkers(Workers, AsyncClient):
    """`app.aio.workers`."""


class Gates(Client):
    """Switches that stop work: `app.gates`."""

    @operation
    def all(self) -> Steps[list[Gate]]:
        """Every switch and how it stands."""
        return (yield from ask(ListGates()))

    @operation
    def open(self, name: str, *, actor: str | None = None, reason: str | None = None) -> Steps[Gate]:
        """Allow what the gate guards."""
        return (yield from ask(SetGate(arguments.name("name", name), True, self._by(actor), reason)))

    @operation
    def close(self, name: str, *, actor: str | None = None, reason: str | None = None) -> Steps[Gate]:
        """Refuse what the gate guards, at once and for all: master, worker, notify, heartbeat, `queue:NAME`,
        `kind:NAME`, which lets jobs of the kind wait, or `worker:ID`, as `app.workers.drain` does."""
        return (yield from ask(SetGate(arguments.name("name", name), False, self._by(actor), reason)))


class SyncGates(Gates, SyncClient):
    """`app.gates`."""


class AsyncGates(Gates, AsyncClient):
    """`app.aio.gates`."""


class Leases(Client):
    """Named leases, by which one of many processes leads: `app.leases`."""

    @operation
    def acquire(self, name: str, owner: str, *, seconds: Duration = 30.0) -> Steps[NamedLease]:
        """Take a named lease, or extend one's own. `acquired`: the asker leads; `term` fences what it does."""
        duration = arguments.seconds("seconds", seconds, positive=True)
        return (yield from ask(AcquireLease(arguments.name("name", name), arguments.name("owner", owner), duration)))

    @operation
    def release(self, name: str, owner: str, term: int) -> Steps[bool]:
        """Give a named lease back, if it is still the asker's in that term."""
        return (yield from ask(ReleaseLease(arguments.name("name", name), arguments.name("owner", owner), term)))


class SyncLeases(Leases, SyncClient):
    """`app.leases`."""


class AsyncLeases(Leases, AsyncClient):
    """`app.aio.leases`."""

"""What the queues' policies mean for this worker: how long leases are, and what becomes of kinds nobody handles."""

from __future__ import annotations

from collections.abc import Mapping

from tenure.errors import AccessDenied, ConfigError, Forbidden
from tenure.handler.registry import Handler
from tenure.model.clock import steady_now
from tenure.model.ids import WorkerId
from tenure.model.policy import QueuePolicy, UnknownKindRule
from tenure.store.admin import SetQueues
from tenure.store.contract import Store
from tenure.store.queries import ListQueues
from tenure.worker.config import HEARTBEATS_PER_LEASE, WorkerConfig
from tenure.worker.systemd import watchdog_seconds
from tenure.worker.ticket import Ticket

REFRESH_SECONDS = 40.0
"""How often the policies are read again, unless a heartbeat has just told that they are the same."""
BELIEVED_SECONDS = 25.0
"""What a heartbeat told is believed for so long: somewhat longer than the default leases let pass between two."""


class Policies:
    """The policies of the worker's queues, read at the start and again from time to time."""

    def __init__(self, store: Store, config: WorkerConfig, registry: Mapping[str, Handler]) -> None:
        self._store = store
        self._config = config
        self._policies: dict[str, QueuePolicy] = {}
        self._told: str | None = None
        self._told_at = 0.0
        self._read_after: str | None = None
        """What had been told when the policies were last read."""
        self._kind_leases = [h.lease_seconds for h in registry.values() if h.lease_seconds is not None]

    async def prepare(self, worker: WorkerId) -> None:
        """Read the policies, creating queues that do not exist yet, and check that heartbeats fit the leases.

        Raises: ConfigError.
        """
        await self.refresh()
        missing = [name for name in self._config.queue_names if name not in self._policies]
        if missing:
            policies = {name: self._config.declare.get(name, QueuePolicy()) for name in missing}
            try:
                await self._store.ado(SetQueues(policies, worker, only_new=True))
            except (Forbidden, AccessDenied) as exc:
                raise ConfigError(
                    f"The queues {missing} do not exist, and this worker may not create them ({exc}). "
                    "Create them with `tenure queues set`, as an operator."
                ) from exc
            await self.refresh()
        for lease in self._leases():
            self._config.check_heartbeat(lease)

    async def refresh(self) -> None:
        """Read the policies again."""
        rows = await self._store.ado(ListQueues(self._config.queue_names))
        self._policies = {row.name: row.policy for row in rows}

    def heard(self, mark: str | None) -> None:
        """A heartbeat told which policies the store has now. From any thread."""
        self._told, self._told_at = mark, steady_now()

    async def refresh_unless_same(self) -> None:
        """Read the policies again, but not if they are known to be those that were read."""
        told = self._told
        if told is None or told != self._read_after or steady_now() - self._told_at > BELIEVED_SECONDS:
            await self.refresh()
            self._read_after = told

    def no_handler(self, queue: str) -> UnknownKindRule:
        """What becomes of a job whose kind has no handler here."""
        policy = self._policies.get(queue)
        return "reject" if policy is None else policy.on_unknown_kind

    def granted_seconds(self, queue: str) -> float:
        """How long a claim leases a job of a queue."""
        if self._config.lease_seconds is not None:
            return self._config.lease_seconds
        policy = self._policies.get(queue)
        return QueuePolicy().lease_seconds if policy is None else policy.lease_seconds

    def asked_seconds(self, ticket: Ticket) -> float | None:
        """The lease that a heartbeat asks for; None is the queue's own."""
        if ticket.handler is not None and ticket.handler.lease_seconds is not None:
            return ticket.handler.lease_seconds
        return self._config.lease_seconds

    def lease_seconds(self, ticket: Ticket) -> float:
        """How long a heartbeat extends the lease of a ticket."""
        return self.asked_seconds(ticket) or self.granted_seconds(ticket.grant.queue)

    def heartbeat_seconds(self) -> float:
        """A third of the shortest lease unless told otherwise; sooner if a service manager wants to hear from us."""
        period = self._config.heartbeat_seconds or min(self._leases()) / HEARTBEATS_PER_LEASE
        watchdog = watchdog_seconds()
        return period if watchdog is None else min(period, watchdog / 2)

    def _leases(self) -> list[float]:
        return [self.granted_seconds(name) for name in self._config.queue_names] + self._kind_leases

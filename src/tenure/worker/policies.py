"""The queues' policies as this worker needs them: the length of leases, and the rule for unknown kinds."""

from __future__ import annotations

from collections.abc import Mapping

from tenure.errors import AccessDenied, ConfigError, Forbidden
from tenure.handler.registry import Handler
from tenure.model.ids import WorkerId
from tenure.model.policy import QueuePolicy, UnknownKindRule
from tenure.store.admin import SetQueues
from tenure.store.contract import Store
from tenure.store.queries import CountJobs, ListQueues
from tenure.worker.config import HEARTBEATS_PER_LEASE, WorkerConfig
from tenure.worker.execution import Execution
from tenure.worker.systemd import watchdog_seconds

REFRESH_SECONDS = 40.0
"""How often the policies are read again."""


class Policies:
    """The policies of the worker's queues, read at the start and again from time to time."""

    def __init__(self, store: Store, config: WorkerConfig, registry: Mapping[str, Handler]) -> None:
        self._store = store
        self._config = config
        self._policies: dict[str, QueuePolicy] = {}
        self.granted_seconds: dict[str, float] = {}
        """How long a claim leases a job, by queue."""
        self._handled = tuple(sorted(registry))
        self._named: set[str] = set()
        """Unknown kinds that the log has named already."""
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
        self._check_handlers()
        for lease in self._leases():
            self._config.check_heartbeat(lease)

    async def refresh(self) -> None:
        """Read the policies again."""
        rows = await self._store.ado(ListQueues(self._config.queue_names))
        self._policies = {row.name: row.policy for row in rows}
        self.granted_seconds = {
            name: self._config.lease_seconds or self._policies.get(name, QueuePolicy()).lease_seconds
            for name in self._config.queue_names
        }

    @property
    def profiles(self) -> set[str]:
        """The profiles of the worker's queues, without `default`, which is Tenure's own."""
        return {policy.profile for policy in self._policies.values()} - {QueuePolicy().profile}

    async def unknown_kinds(self) -> dict[str, list[str]]:
        """Kinds without a handler here of which jobs wait, with their queues. Each kind is answered once."""
        found: dict[str, list[str]] = {}
        for count in await self._store.ado(CountJobs(self._config.queue_names, ("queued",))):
            is_wanted = self._config.kinds is None or count.kind in self._config.kinds
            if is_wanted and count.kind not in self._handled and count.kind not in self._named:
                found.setdefault(count.kind, []).append(count.queue)
        self._named.update(found)
        return found

    def is_there(self, queue: str) -> bool:
        """Whether the queue existed at the last look."""
        return queue in self._policies

    def unknown_kind_rule(self, queue: str) -> UnknownKindRule:
        """What becomes of a job whose kind has no handler here."""
        policy = self._policies.get(queue)
        return QueuePolicy().on_unknown_kind if policy is None else policy.on_unknown_kind

    def claimed_kinds(self, queue: str) -> tuple[str, ...] | None:
        """The kinds to claim in a queue; None claims all, so that unknown ones are rejected or released."""
        asked = None if self._config.kinds is None else tuple(self._config.kinds)
        if self.unknown_kind_rule(queue) != "leave":
            return asked
        return self._handled if asked is None else tuple(kind for kind in asked if kind in self._handled)

    def asked_seconds(self, execution: Execution) -> float | None:
        """The lease that a heartbeat asks for; None is the queue's own."""
        if execution.handler is not None and execution.handler.lease_seconds is not None:
            return execution.handler.lease_seconds
        return self._config.lease_seconds

    def lease_seconds(self, execution: Execution) -> float:
        """How long a heartbeat extends the lease of an execution: what is asked for, as far as the queue allows it."""
        queue = execution.grant.queue
        most = self._policies.get(queue, QueuePolicy()).lease_max_seconds
        return min(self.asked_seconds(execution) or self.granted_seconds[queue], most)

    def shortest_lease(self) -> float:
        """The shortest lease, in seconds, that this worker may hold a job under."""
        return min(self._leases())

    def heartbeat_seconds(self) -> float:
        """A third of the shortest lease unless told otherwise; sooner if a service manager watches this process."""
        period = self._config.heartbeat_seconds or self.shortest_lease() / HEARTBEATS_PER_LEASE
        watchdog = watchdog_seconds()
        return period if watchdog is None else min(period, watchdog / 2)

    def _check_handlers(self) -> None:
        """A worker that could run nothing is a mistake, unless it is there to reject or release unknown kinds."""
        if all(self.unknown_kind_rule(name) != "leave" for name in self._config.queue_names):
            return
        if not self._handled:
            raise ConfigError(
                "This worker has no handlers, so it could run nothing. Import the modules that define them with "
                "`@app.job` before it starts, or name the app that has them."
            )
        kinds = self._config.kinds
        if kinds is not None and not set(kinds) & set(self._handled):
            raise ConfigError(
                f"This worker is to claim only the kinds {sorted(kinds)}, but has a handler for none of them; it has "
                f"handlers for {list(self._handled)}."
            )

    def _leases(self) -> list[float]:
        return [*self.granted_seconds.values(), *self._kind_leases]

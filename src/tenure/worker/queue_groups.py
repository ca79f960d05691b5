"""Which queues the next claim asks, for how many jobs, and for which kinds.

A claim has one limit and one list of kinds for all its queues. Queues that are weighted or limited on their own, or
that treat unknown kinds differently, are therefore claimed in groups of their own, one group per claim.

A group that gave less than was asked for is empty until a wake-up or the poll makes it worth asking again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tenure.model.frozen import frozen
from tenure.worker.config import WorkerConfig


class QueueGroup:
    """Queues that are claimed together."""

    __slots__ = ("credit", "is_empty", "kinds", "limit", "queues", "weight")

    def __init__(
        self, queues: tuple[str, ...], kinds: tuple[str, ...] | None, weight: int = 1, limit: int | None = None
    ) -> None:
        self.queues = queues
        self.kinds = kinds
        self.weight = weight
        self.limit = limit
        self.credit = 0
        self.is_empty = False

    def room(self, free: int, held_by_queue: Mapping[str, int]) -> int:
        """How many jobs it may be asked for."""
        if self.limit is None:
            return free
        return min(free, self.limit - held_by_queue.get(self.queues[0], 0))


@frozen
class Ask:
    """The parts of a claim that the groups decide. `group` is None for a claim that covers all queues."""

    queues: tuple[str, ...]
    limit: int
    kinds: Sequence[str] | None
    group: QueueGroup | None = None


class QueueGroups:
    """Chooses the group of the next claim. `kinds_of` names the kinds to claim in a queue; None: all."""

    def __init__(self, config: WorkerConfig, kinds_of: Callable[[str], tuple[str, ...] | None]) -> None:
        self._config = config
        self._kinds_of = kinds_of
        self._kinds = self._kinds_now()
        self._groups = self._build()

    def refresh(self) -> None:
        """Policies were read again: build the groups anew if the kinds to claim have changed."""
        kinds = self._kinds_now()
        if kinds != self._kinds:
            self._kinds = kinds
            self._groups = self._build()

    def ask(self, free: int, held_by_queue: Mapping[str, int]) -> Ask | None:
        """The next claim, or None while there is no group worth asking."""
        ready = [group for group in self._groups if not group.is_empty and group.room(free, held_by_queue) > 0]
        if not ready:
            return None
        group = ready[0] if self._config.strict or len(ready) == 1 else _next_by_weight(ready)
        return Ask(group.queues, group.room(free, held_by_queue), group.kinds, group)

    def ask_all(self, limit: int) -> Ask:
        """A claim over all queues, for the repeat after a lost reply.

        Where queues differ in their filter by kind it has none: jobs of unknown kinds may be among those granted.
        """
        kinds = set(self._kinds.values())
        return Ask(self._config.queue_names, limit, kinds.pop() if len(kinds) == 1 else self._config.kinds)

    def answered(self, ask: Ask, granted: int) -> None:
        """Remember whether a claim gave all that was asked for."""
        if ask.group is not None:
            ask.group.is_empty = granted < ask.limit

    def wake(self) -> None:
        """Jobs may have arrived: every group is worth asking again."""
        for group in self._groups:
            group.is_empty = False

    def sleep(self) -> None:
        """Nothing is granted for now: no group is worth asking until the next wake-up or poll."""
        for group in self._groups:
            group.is_empty = True

    @property
    def is_empty(self) -> bool:
        return all(group.is_empty for group in self._groups)

    def _kinds_now(self) -> dict[str, tuple[str, ...] | None]:
        return {name: self._kinds_of(name) for name in self._config.queue_names}

    def _build(self) -> list[QueueGroup]:
        config, kinds = self._config, self._kinds
        limits = config.queue_concurrency
        if isinstance(config.queues, Mapping):
            return [
                QueueGroup((name,), kinds[name], weight, limits.get(name)) for name, weight in config.queues.items()
            ]
        if config.strict and (limits or len(set(kinds.values())) > 1):
            return [QueueGroup((name,), kinds[name], 1, limits.get(name)) for name in config.queues]
        together: dict[tuple[str, ...] | None, list[str]] = {}
        for name in config.queues:
            if name not in limits:
                together.setdefault(kinds[name], []).append(name)
        groups = [QueueGroup(tuple(names), found, len(names)) for found, names in together.items()]
        return groups + [QueueGroup((name,), kinds[name], 1, limit) for name, limit in limits.items()]


def _next_by_weight(groups: list[QueueGroup]) -> QueueGroup:
    """Smooth weighted round-robin: over time each group is chosen in proportion to its weight, never in bursts."""
    for group in groups:
        group.credit += group.weight
    chosen = max(groups, key=lambda group: group.credit)
    chosen.credit -= sum(group.weight for group in groups)
    return chosen

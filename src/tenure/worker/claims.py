"""What the next claim asks for: which queues and kinds, and how many jobs beside those that run.

A claim has one limit and one list of kinds for all its queues. Queues that are weighted or limited on their own, or
that treat unknown kinds differently, are therefore claimed in groups of their own, one group per claim.

A group that gave less than was asked for is empty until a wake-up or the poll makes it worth asking again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from tenure.model.frozen import frozen
from tenure.model.ids import JobId, WorkerId
from tenure.store.contract import Claim
from tenure.worker.config import WorkerConfig

AUTO_SECONDS = 0.1
AUTO_LIMIT = 200
WINDOW_SECONDS = 0.1
"""The rate is measured over at least this much time in which there were jobs to run."""


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


@frozen
class Ask:
    """A claim and the group that it asks; None if it covers all queues. `wakes`: the wake-ups that came before it."""

    claim: Claim
    wakes: int
    group: QueueGroup | None = None


class QueueGroups:
    """Builds the next claim. `kinds_of` names the kinds to claim in a queue; None: all. `is_there`: whether the queue
    exists; one that was removed is not asked."""

    def __init__(
        self,
        worker: WorkerId,
        config: WorkerConfig,
        kinds_of: Callable[[str], tuple[str, ...] | None],
        is_there: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._claim = Claim(
            worker, (), 0, affinity=config.affinity, lease_seconds=config.lease_seconds, strict=config.strict
        )
        """What all claims of this worker have in common."""
        self._config = config
        self._kinds_of = kinds_of
        self._is_there = is_there
        self._kinds = self._kinds_now()
        """By queue that exists."""
        self._groups = self._build()
        self.wakes = 0

    def refresh(self) -> None:
        """Policies were read again: build the groups anew if queues or the kinds to claim have changed."""
        kinds = self._kinds_now()
        if kinds != self._kinds:
            self._kinds = kinds
            self._groups = self._build()

    def ask(self, free: int, held_by_queue: Mapping[str, int]) -> Ask | None:
        """The next claim, for up to `free` jobs, or None while there is no group worth asking."""
        ready: dict[QueueGroup, int] = {}
        for group in self._groups:
            room = free
            if group.limit is not None:
                room = min(free, group.limit - held_by_queue.get(group.queues[0], 0))
            if room > 0 and not group.is_empty:
                ready[group] = room
        if not ready:
            return None
        group = next(iter(ready)) if self._config.strict or len(ready) == 1 else _next_by_weight(list(ready))
        claim = replace(self._claim, queues=group.queues, limit=ready[group], kinds=group.kinds)
        return Ask(claim, self.wakes, group)

    def ask_all(self, limit: int, held: Sequence[JobId]) -> Ask:
        """A claim over all queues, for the repeat after a lost reply: what the worker does not name is granted again.

        Where queues differ in their filter by kind it has none: jobs of unknown kinds may be among those granted.
        """
        kinds = set(self._kinds.values())
        common = kinds.pop() if len(kinds) == 1 else self._config.kinds
        claim = replace(self._claim, queues=tuple(self._kinds), limit=limit, kinds=common, held=held)
        return Ask(claim, self.wakes)

    def wake(self) -> None:
        """Jobs may have arrived: every group is worth asking again."""
        self.wakes += 1
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
        return {name: self._kinds_of(name) for name in self._config.queue_names if self._is_there(name)}

    def _build(self) -> list[QueueGroup]:
        config, kinds = self._config, self._kinds
        limits = config.queue_concurrency
        if isinstance(config.queues, Mapping):
            weights = config.queues
            return [QueueGroup((name,), found, weights[name], limits.get(name)) for name, found in kinds.items()]
        if config.strict and (limits or len(set(kinds.values())) > 1):
            return [QueueGroup((name,), found, 1, limits.get(name)) for name, found in kinds.items()]
        together: dict[tuple[str, ...] | None, list[str]] = {}
        for name, found in kinds.items():
            if name not in limits:
                together.setdefault(found, []).append(name)
        groups = [QueueGroup(tuple(names), found, len(names)) for found, names in together.items()]
        return groups + [QueueGroup((name,), kinds[name], 1, limit) for name, limit in limits.items() if name in kinds]


def _next_by_weight(groups: list[QueueGroup]) -> QueueGroup:
    """Smooth weighted round-robin: over time each group is chosen in proportion to its weight, never in bursts."""
    for group in groups:
        group.credit += group.weight
    chosen = max(groups, key=lambda group: group.credit)
    chosen.credit -= sum(group.weight for group in groups)
    return chosen


class Prefetch:
    """How many jobs to fetch beside those that run: `jobs`. Lives on the event loop's thread.

    `auto` is what the worker ran in 100 ms at its last measured rate, at most 200: enough that no runner waits for a
    round trip, few enough that each starts at once. A worker of four-hour jobs fetches none ahead.
    """

    def __init__(self, setting: int | Literal["auto"]) -> None:
        self._is_auto = setting == "auto"
        self.jobs = 0 if setting == "auto" else setting
        self.ended = 0
        """Jobs that have ended since the last measurement."""
        self._busy_seconds = 0.0
        self._busy_since: float | None = None

    def start(self, now: float) -> None:
        """There are jobs to run."""
        if self._busy_since is None:
            self._busy_since = now

    def stop(self, now: float) -> None:
        """The last job that the worker held has ended."""
        if self._busy_since is not None:
            self._busy_seconds += now - self._busy_since
            self._busy_since = None

    def measure(self, now: float) -> None:
        """Set `jobs` by the rate since the last measurement, once the window is long enough."""
        if not self._is_auto:
            return
        busy = self._busy_seconds + (0.0 if self._busy_since is None else now - self._busy_since)
        if busy >= WINDOW_SECONDS:
            self.jobs = min(AUTO_LIMIT, int(self.ended / busy * AUTO_SECONDS))
            self._begin_window(now)

    def reset(self, now: float) -> None:
        """Fetch none ahead until the next measurement: jobs that were fetched had to wait and were given back."""
        if self._is_auto:
            self.jobs = 0
            self._begin_window(now)

    def _begin_window(self, now: float) -> None:
        self.ended, self._busy_seconds = 0, 0.0
        if self._busy_since is not None:
            self._busy_since = now

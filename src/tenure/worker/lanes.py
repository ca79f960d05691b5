"""Which queues the next claim asks, and for how much.

A claim has one limit for all its queues. Queues that are weighted or limited on their own therefore get lanes of their
own, and each claim takes one lane; without weights and limits there is a single lane with all queues.

A lane that gave less than was asked for is dry. When all are dry the worker asks to be woken and sleeps; a wake-up or
the poll makes them worth asking again. The last claim before sleep covers every queue, so that one registration does.
"""

from __future__ import annotations

from collections.abc import Mapping

from tenure.model.frozen import frozen
from tenure.model.ids import JobId, WorkerId
from tenure.store.contract import Claim
from tenure.worker.config import WorkerConfig


class Lane:
    """Queues that are asked together."""

    __slots__ = ("credit", "is_dry", "limit", "queues", "weight")

    def __init__(self, queues: tuple[str, ...], weight: int = 1, limit: int | None = None) -> None:
        self.queues = queues
        self.weight = weight
        self.limit = limit
        self.credit = 0
        self.is_dry = False

    def room(self, free: int, open_by_queue: Mapping[str, int]) -> int:
        """How many jobs it may be asked for."""
        if self.limit is None:
            return free
        return min(free, self.limit - open_by_queue.get(self.queues[0], 0))


@frozen
class Ask:
    """The parts of a claim that the lanes decide."""

    queues: tuple[str, ...]
    limit: int
    wants_wake: bool | None
    lanes: tuple[Lane, ...]


class Lanes:
    """Chooses the lane of the next claim, and knows whether the worker is registered to be woken."""

    def __init__(self, config: WorkerConfig) -> None:
        self._strict = config.strict
        self.lanes = _lanes(config)
        self._is_registered: bool | None = None
        self._was_short = True
        self.is_limited = bool(config.queue_concurrency)

    def ask(self, free: int, open_by_queue: Mapping[str, int]) -> Ask | None:
        """The next claim, or None while there is nothing worth asking."""
        if len(self.lanes) == 1:
            (lane,) = self.lanes
            room = 0 if lane.is_dry else lane.room(free, open_by_queue)
            return Ask(lane.queues, room, self._wake_wish(), (lane,)) if room > 0 else None
        roomy = [lane for lane in self.lanes if lane.room(free, open_by_queue) > 0]
        wet = [lane for lane in roomy if not lane.is_dry]
        if not wet:
            return self._last_ask(roomy, free, open_by_queue)
        lane = wet[0] if self._strict or len(wet) == 1 else _next_by_weight(wet)
        return Ask(lane.queues, lane.room(free, open_by_queue), None, (lane,))

    def ask_when_woken(self, free: int) -> Ask | None:
        """What `ask` will say once the worker is woken, for which the store knows it to be waiting. With one lane that
        is known beforehand."""
        if not (self.is_known and self._is_registered):
            return None
        (lane,) = self.lanes
        return Ask(lane.queues, free, None, (lane,))

    @property
    def is_known(self) -> bool:
        """Whether there is one lane, without a limit, and it gave less than was asked for: then a worker that sleeps is
        to be woken for it."""
        return len(self.lanes) == 1 and not self.is_limited and self._was_short

    def ask_for_none(self) -> Ask:
        """A claim that takes nothing, for what else it says."""
        return Ask(tuple(name for lane in self.lanes for name in lane.queues), 0, None, ())

    def answered(self, ask: Ask, granted: int) -> None:
        """Learn from what a claim gave."""
        is_short = granted < ask.limit
        if ask.wants_wake is not None:
            self._is_registered = ask.wants_wake
        self._was_short = is_short
        covers_all = len(ask.lanes) == len(self.lanes)
        for lane in ask.lanes:
            # A single lane is dry only once the store knows whom to wake: otherwise one more claim must tell it.
            lane.is_dry = is_short and (not covers_all or self._is_registered is True)

    def wake(self) -> None:
        """Something may have arrived: every lane is worth asking again."""
        for lane in self.lanes:
            lane.is_dry = False

    def forget_registration(self) -> None:
        """The store may not know any more that this worker waits, so it is told anew."""
        self._is_registered = None

    @property
    def is_dry(self) -> bool:
        return all(lane.is_dry for lane in self.lanes)

    def _last_ask(self, roomy: list[Lane], free: int, open_by_queue: Mapping[str, int]) -> Ask | None:
        if not roomy or self._is_registered:
            return None
        queues = tuple(name for lane in roomy for name in lane.queues)
        return Ask(queues, min(lane.room(free, open_by_queue) for lane in roomy), True, tuple(roomy))

    def _wake_wish(self) -> bool | None:
        wish = self._was_short
        return None if self._is_registered is wish else wish


def claim_for(
    worker: WorkerId,
    ask: Ask,
    config: WorkerConfig,
    *,
    held: list[JobId] | None,
    beats: bool,
    offers: bool,
    offered: bool,
) -> Claim:
    """The claim that asks for this."""
    return Claim(
        worker=worker,
        queues=ask.queues,
        limit=ask.limit,
        kinds=config.kinds,
        affinity=config.affinity,
        lease_seconds=config.lease_seconds,
        strict=config.strict,
        held=held,
        wants_wake=ask.wants_wake,
        beats=beats,
        offers=offers,
        offered=offered,
    )


def _lanes(config: WorkerConfig) -> list[Lane]:
    limits = config.queue_concurrency
    if isinstance(config.queues, Mapping):
        return [Lane((name,), weight, limits.get(name)) for name, weight in config.queues.items()]
    if config.strict and limits:
        return [Lane((name,), 1, limits.get(name)) for name in config.queues]
    together = tuple(name for name in config.queues if name not in limits)
    lanes = [Lane(together, len(together))] if together else []
    return lanes + [Lane((name,), 1, limit) for name, limit in limits.items()]


def _next_by_weight(lanes: list[Lane]) -> Lane:
    """Smooth weighted round-robin: over time each lane is taken in proportion to its weight, never in bursts."""
    for lane in lanes:
        lane.credit += lane.weight
    chosen = max(lanes, key=lambda lane: lane.credit)
    chosen.credit -= sum(lane.weight for lane in lanes)
    return chosen

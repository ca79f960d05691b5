"""The fetcher: settle what ended and claim for the free slots, in one exchange, for as long as the worker lives.

**Batches form by themselves.** While an exchange is in flight handlers run and outcomes gather; the next one takes them
all. At low load a single job goes out at once; at high load batches grow. There is no timer in this. At most
`max_in_flight` exchanges are in flight, and a further one goes out only if it carries a fair share.

**When to claim.** A wake-up from the store, an outcome, a free slot, a delayed job that comes due, or the poll. The
answer to a claim says when the next job comes due; the poll is stretched while the listener of a store that machines
share is alive. In a large fleet most workers find nothing after a wake-up; one that was woken for nothing
several times in a row waits for a random moment of up to 20 ms before it claims. A worker to which others were faster
several times in a row leaves jobs that come due to them, until it is given one.

**When the database is away** the loop backs off to 30 s. Outcomes stay in the outbox. A claim whose reply was lost may
have granted jobs that this worker does not know of; the next claim names what is held, and the store grants the rest
again; so it does before it ends, to give them back. The loop ends when it was told to finish and nothing is held any
more.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable

from tenure.errors import GateClosed, StoreClosed, StoreUnavailable, TenureError, UnknownQueue
from tenure.model.clock import steady_now
from tenure.model.job import Grant
from tenure.model.log_event import ERROR, INFO, WARNING
from tenure.model.outcome import Outcome
from tenure.store.contract import Exchange, Exchanged, Store
from tenure.worker.claims import Ask, Prefetch, QueueGroups
from tenure.worker.config import WorkerConfig
from tenure.worker.execution import Held, is_held
from tenure.worker.flow_sweep import FlowSweep
from tenure.worker.leases import Leases
from tenure.worker.log import WorkerLog, code_of
from tenure.worker.settle import Outbox, settle_singly

BATCH = 1000
"""Outcomes in one exchange at most, and jobs that it claims."""
BACKOFF_SECONDS, BACKOFF_MAX_SECONDS = 0.1, 30.0
LISTENING_POLLS = 5.0
"""How many times longer the poll is while the listener of a shared store is alive."""
EMPTY_WAKES = 3
"""After this many wake-ups in a row that brought no job, the claim after a wake-up is delayed at random."""
SPREAD_SECONDS = 0.02


class Fetcher:
    """The worker's one conversation with the store. Lives on the event loop's thread, but for `wake`."""

    def __init__(
        self,
        store: Store,
        config: WorkerConfig,
        held: Held,
        outbox: Outbox,
        log: WorkerLog,
        take: Callable[[list[Grant], float], None],
        leases: Leases,
        groups: QueueGroups,
    ) -> None:
        self._store = store
        self._config = config
        self._held = held
        self._outbox = outbox
        self._log = log
        self._take = take
        self._leases = leases
        self._groups = groups
        self.is_listening: Callable[[], bool] = lambda: False
        """Whether wake-ups are believed to arrive."""
        self.find_queues: Callable[[], Awaitable[None]] | None = None
        """Looks which of the worker's queues there are, after a claim named one that is not there any more."""
        self._is_shared = not store.url.startswith("sqlite")
        self._loop = asyncio.get_running_loop()
        self._asleep: asyncio.Future[None] | None = None
        self._in_flight: list[Ask | None] = []
        """What the exchanges in flight claim."""
        self.unfinished = 0
        """Jobs held whose handlers have not ended."""
        self._unfinished_by_queue: dict[str, int] = {}
        self.prefetch = Prefetch(config.prefetch)
        self._flow = FlowSweep(store, log, self._look)
        self.exchanges = self.claimed = 0
        self._is_paused = False
        self.is_finishing = False
        """Nothing more is claimed."""
        self._gave_up = False
        self._unheard = 0
        """How many jobs may have been granted in replies that were lost."""
        self._failures = 0
        self._away_until = self._no_claim_until = self._poll_at = 0.0
        self._due_at = math.inf
        """When the next delayed job comes due, as far as the last claim knows."""
        self._looks_for_due = False
        self._missed_dues = 0
        """How often in a row other workers were faster with a job that came due."""
        self._wakes = 0
        self._was_woken = False
        self._empty_wakes = 0
        self._gate: str | None = None

    # --- what others tell it ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Jobs may have arrived, or a held job was asked to stop. From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._woken)

    def poke(self) -> None:
        """There is something to settle, or a slot is free."""
        if self._asleep is not None and not self._asleep.done():
            self._asleep.set_result(None)

    def count_end(self, queue: str) -> None:
        """A handler has ended."""
        self.unfinished -= 1
        self.prefetch.ended += 1
        if not self.unfinished:
            self.prefetch.stop(self._loop.time())
        if self._config.queue_concurrency:
            self._unfinished_by_queue[queue] -= 1

    def slow_down(self) -> None:
        """Jobs that were fetched ahead had to be given back: fetch none ahead until the next measurement."""
        self.prefetch.reset(self._loop.time())

    def pause(self) -> None:
        """Claim nothing until `resume`; go on settling."""
        self._is_paused = True

    def resume(self) -> None:
        """Claim again."""
        self._is_paused = False
        self._groups.wake()
        self.poke()

    def hold_off(self, seconds: float) -> None:
        """Claim nothing for some seconds."""
        self._no_claim_until = max(self._no_claim_until, self._loop.time() + seconds)
        self._loop.call_later(seconds, self._look)

    def finish(self) -> None:
        """Claim nothing more; end once everything held is settled."""
        self.is_finishing = True
        self.poke()

    def give_up(self) -> None:
        """End even though outcomes could not be written. Their leases run out."""
        self._gave_up = True
        self.poke()

    @property
    def is_away(self) -> bool:
        """Whether the database was not to be reached at the last try."""
        return self._failures > 0

    # --- the loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Exchange until told to finish."""
        self._look()
        async with asyncio.TaskGroup() as requests:
            sweeping = requests.create_task(self._flow.run())
            self._flow.soon()  # a worker that was killed may have left events, and may have led
            while not self._is_done():
                following = self._next()
                if following is not None:
                    requests.create_task(self._exchange(*following))
                    await asyncio.sleep(0)  # it is in flight from here on
                    continue
                self._asleep = self._loop.create_future()
                # Being poked does not put off the poll: it finds what no wake-up tells of.
                is_away = self._away_until > self._loop.time()
                timer = self._loop.call_at(
                    self._away_until if is_away else min(self._poll_at, self._due_at), self._look
                )
                try:
                    await self._asleep
                finally:
                    self._asleep = None
                    timer.cancel()
            sweeping.cancel()

    def _is_done(self) -> bool:
        if self._in_flight:
            return False
        if self._gave_up:
            return True
        if self._flow.is_busy:
            return False
        if self._config.drain and not self.is_finishing and self._groups.is_empty and not self._held:
            self.finish()
        return self.is_finishing and not (self._held or self._outbox.waiting or self._unheard)

    def _next(self) -> tuple[list[Outcome], Ask | None] | None:
        """What the next exchange carries; None while there is nothing to send."""
        if len(self._in_flight) >= self._config.max_in_flight or self._loop.time() < self._away_until or self._gave_up:
            return None
        if self._in_flight and self._unheard:
            return None  # a repeat must name all that is held, so it goes alone
        ask = self._ask()
        waiting = len(self._outbox.waiting)
        if ask is None and not waiting:
            return None
        if self._in_flight and max(waiting, 0 if ask is None else ask.claim.limit) < self._share():
            return None  # too little for a second one: it goes with the next
        return self._outbox.take(BATCH), ask

    def _share(self) -> int:
        """What a further exchange must carry at least: a fair part of all that the worker may hold."""
        return max(1, (self._config.concurrency + self.prefetch.jobs) // (self._config.max_in_flight + 1))

    def _ask(self) -> Ask | None:
        """The claim of the next exchange, if the worker may hold more and a queue is worth asking."""
        now = self._loop.time()
        if self.is_finishing and self._unheard:  # what was granted unheard is to be given back
            return self._groups.ask_all(self._unheard, list(self._held))
        if self.is_finishing or self._is_paused or now < self._no_claim_until or self._leases.is_due():
            return None
        self.prefetch.measure(now)
        free = self._free()
        if self._config.once:
            free = min(free, 0 if self._in_flight else 1)
        if self._unheard:  # ask everywhere, for as many as may have been granted
            return self._groups.ask_all(max(free, self._unheard), list(self._held))
        if free <= 0:
            return None
        held = self._unfinished_by_queue
        if self._config.queue_concurrency and self._in_flight:
            held = defaultdict(int, held)
            for ask in self._in_flight:
                if ask is not None:
                    for name in ask.claim.queues:
                        held[name] += ask.claim.limit
        return self._groups.ask(min(free, BATCH), held)

    def _free(self) -> int:
        """How many more jobs this worker may hold: by its slots, and by what a heartbeat can carry."""
        concurrency, capacity = self._config.concurrency, self._leases.capacity
        by_slots = concurrency + self.prefetch.jobs - self.unfinished
        if capacity is not None:
            by_slots = min(by_slots, max(concurrency, capacity) - len(self._held) + len(self._outbox.waiting))
        return by_slots - sum(ask.claim.limit for ask in self._in_flight if ask is not None)

    def _look(self) -> None:
        """The poll, or a job has come due: every queue is worth a claim."""
        self._looks_for_due = self._due_at <= self._loop.time()
        self._due_at = math.inf
        stretch = LISTENING_POLLS if self._is_shared and self.is_listening() else 1.0
        self._poll_at = self._loop.time() + self._config.poll_seconds * stretch * random.uniform(0.8, 1.0)
        self._groups.wake()
        self.poke()

    def _woken(self) -> None:
        self._wakes += 1
        self._was_woken = True
        self._groups.wake()
        if self._empty_wakes >= EMPTY_WAKES and not self._held:
            self.hold_off(random.uniform(0.0, SPREAD_SECONDS))
        else:
            self.poke()
        if self._free() <= 0:
            self._leases.send_soon()  # no claim follows, and it may have been a request to stop a job

    async def _exchange(self, outcomes: list[Outcome], ask: Ask | None) -> None:
        claim = None if ask is None else ask.claim
        wakes, sent = self._wakes, steady_now()
        arrived: Exchanged | None = None
        self.exchanges += 1
        self._in_flight.append(ask)
        try:
            arrived = await self._store.ado(Exchange(outcomes, claim))
        except StoreUnavailable as exc:
            self._outbox.put_back(outcomes)
            if claim is not None:  # a repeat takes up what was lost before it, so its own limit covers both
                self._unheard = claim.limit if claim.held is not None else self._unheard + claim.limit
            self._back_off(exc)
        except GateClosed as exc:
            self._outbox.put_back(outcomes)
            self._gate_closed(exc)
        except StoreClosed as exc:
            self._log.event("store_closed", ERROR, str(exc), code=exc.code)
            self.give_up()
        except Exception as exc:  # noqa: BLE001 - one outcome that cannot be written must not end the worker
            await self._refused(exc, outcomes)
        finally:
            self._in_flight.remove(ask)
        if arrived is not None:
            if self._failures:
                self._log.event("store_back", INFO, f"the store answers again after {self._failures} tries")
                self._failures = 0
            if arrived.has_flow_events:
                self._flow.soon()
            if outcomes:
                self._outbox.settled(outcomes, arrived.settled, sent)
                if self._config.drain or (arrived.settled and ask is None):
                    # A retry or a follow-up may be due, now or soon, and no claim has seen it yet.
                    self._groups.wake()
            if ask is not None:
                self._granted(ask, arrived, sent, was_woken=wakes != self._wakes)
        self.poke()

    # --- around an exchange -------------------------------------------------------------------------------------------

    def _granted(self, ask: Ask, arrived: Exchanged, sent: float, *, was_woken: bool) -> None:
        grants = arrived.grants
        if arrived.taken_back:
            self._log.taken_back(arrived.taken_back)
        if ask.claim.held is not None:  # the repeat; the reply to a claim that left before a loss says nothing of it
            self._unheard = 0
            grants = [grant for grant in grants if not is_held(grant, self._held)]
        if ask.group is not None and ask.wakes == self._groups.wakes:  # else it looked before a wake-up
            ask.group.is_empty = len(grants) < ask.claim.limit
        if arrived.refused is not None:
            self._claim_refused(arrived.refused)
        else:
            self._gate = None
        if arrived.due_in_seconds is not None and self._missed_dues < EMPTY_WAKES:
            self._due_at = min(self._due_at, self._loop.time() + arrived.due_in_seconds)
        if grants:
            self._empty_wakes = self._missed_dues = 0
            self.prefetch.start(self._loop.time())
            self.claimed += len(grants)
            self.unfinished += len(grants)
            if self._config.queue_concurrency:
                for grant in grants:
                    self._unfinished_by_queue[grant.queue] = self._unfinished_by_queue.get(grant.queue, 0) + 1
            self._take(grants, sent)
        else:
            self._missed_dues += self._looks_for_due
            self._empty_wakes += self._was_woken and arrived.due_in_seconds is None
            if self._was_woken and self.unfinished:
                self._leases.send_soon()  # the wake-up was no new job, so it may have been a request to stop one
        self._looks_for_due = False
        self._was_woken = was_woken  # while this claim was in flight, so the next one follows a wake-up
        if self._config.once:
            self.finish()

    # --- trouble ------------------------------------------------------------------------------------------------------

    def _back_off(self, exc: Exception) -> None:
        self._groups.wake()
        delay = min(BACKOFF_MAX_SECONDS, BACKOFF_SECONDS * 2 ** min(self._failures, 16)) * random.uniform(0.5, 1.0)
        self._failures += 1
        self._away_until = self._loop.time() + delay
        self._log.event(
            "store_away",
            WARNING,
            str(exc),
            code=code_of(exc),
            retry_seconds=round(delay, 3),
            unwritten=len(self._outbox.waiting),
        )

    def _claim_refused(self, exc: TenureError) -> None:
        """Outcomes were settled, and the claim that went with them was refused."""
        if isinstance(exc, GateClosed):
            self._gate_closed(exc)
        else:
            self._back_off(exc)

    def _gate_closed(self, exc: GateClosed) -> None:
        """Nothing is granted for now. The poll looks whether the gate is open again; a drain has no more to do, and a
        worker that stops does not wait for it."""
        if self.is_finishing:
            self._unheard = 0
        self._no_claim_until = self._loop.time() + self._config.poll_seconds * 0.75
        self._groups.sleep()
        if self._gate != exc.gate:
            self._gate = exc.gate
            self._log.event("gate_closed", WARNING, str(exc), gate=exc.gate)

    async def _refused(self, exc: Exception, outcomes: list[Outcome]) -> None:
        """The store refused the request as a whole."""
        try:
            if outcomes:
                await settle_singly(self._store, self._outbox, outcomes, self._log)
            else:
                self._log.event("claim_refused", ERROR, str(exc), code=code_of(exc))
                self._back_off(exc)
            if isinstance(exc, UnknownQueue) and self.find_queues is not None:
                await self.find_queues()
        except StoreUnavailable as away:
            self._back_off(away)

"""The exchange: settle what ended and claim for the free slots, in one round trip, for as long as the worker lives.

**Batches form by themselves.** While an exchange is in flight handlers run and outcomes gather; the next one takes them
all. At low load a single job goes out at once; at high load batches grow to hundreds. There is no timer in this.

**Jobs wait inside the worker only as far as they are sure to start soon:** see `ahead`.

**A large fleet looks as seldom, all together, as a small one.** Each worker polls; but where many wait to be woken they
take turns, so that somebody looks four times a second however many there are. Of a wake-up each hears, and only a few
go to look at once: a single job needs no two hundred claims. The others look within a poll's time, in case the few were
not there any more. Who finds jobs then believes in fewer: of those that the store knows many may be dead or busy.

**When the database is away** the loop backs off to 30 s. Outcomes stay in the outbox. A claim whose reply was lost may
have granted jobs that nobody knows of; the next claim names what is held, and the store grants the rest again. The loop
ends when it was told to finish and nothing is held any more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tenure.errors import GateClosed, StoreClosed, StoreUnavailable, TenureError
from tenure.model.clock import steady_now
from tenure.model.ids import WorkerId
from tenure.model.job import Grant
from tenure.model.log_event import ERROR, INFO, WARNING
from tenure.model.outcome import Outcome
from tenure.store.contract import Armed, Claim, Exchange, Exchanged, Store
from tenure.worker.ahead import Ahead
from tenure.worker.config import WorkerConfig
from tenure.worker.flight import Flight
from tenure.worker.lanes import Ask, Lanes, claim_for
from tenure.worker.lease import Leases
from tenure.worker.offer import Offer
from tenure.worker.report import Reporter
from tenure.worker.settle import Outbox, settle_singly
from tenure.worker.ticket import Held, is_held

BATCH = 1000
"""Outcomes in one exchange at most, and jobs that it claims: others wait for as long as it takes."""
SHARE = 32
"""The least that a share is; see Exchanger._share."""
BACKOFF_SECONDS, BACKOFF_MAX_SECONDS = 0.1, 30.0
REGISTER_SECONDS = 30.0
"""After so long the store is told again that this worker wants to be woken."""
LOOKERS = 4
"""So many workers poll as often as they were told to. More of them take turns."""
SELDOM = 10.0
"""A poll is never stretched further than this many times."""
FIRST = 8
"""How many of those that wait go to look at once after a wake-up, on average. None does once in 3,000 times."""
LATER_SECONDS = 0.05
"""The others leave those so much time."""
MOST_DOUBT = 1024


class Exchanger:
    """The worker's one conversation with the store."""

    def __init__(
        self,
        store: Store,
        worker: WorkerId,
        config: WorkerConfig,
        held: Held,
        outbox: Outbox,
        report: Reporter,
        take: Callable[[list[Grant], float], None],
        leases: Leases,
    ) -> None:
        self._store = store
        self._worker = worker
        self._config = config
        self._held = held
        self._outbox = outbox
        self._report = report
        self._take = take
        self._leases = leases
        self._lanes = Lanes(config)
        self._offer = Offer(config)
        self._most_in_flight = config.exchanges or 2
        """Two keep the store at work while this process runs handlers. Where other workers do so on one server one is
        enough, and no claim has to walk over what the other has locked."""
        self.hears: Callable[[], bool] = lambda: False
        """Whether wake-ups are believed to arrive."""
        self.arm: Callable[[Exchange, Callable[[], None]], Armed | None] = lambda _request, _leave: None
        """Lets the next wake-up send a claim."""
        self.owns_loop = False
        """Whether nothing but this worker runs on the loop."""
        self._asleep: asyncio.Future[None] | None = None  # as an event, with fewer calls on the way to a claim
        self._loop = asyncio.get_running_loop()
        self._left: Flight | None = None
        """What a wake-up has sent, and nobody waits for yet."""
        self._in_flight = 0
        self._asked = 0
        self._asked_by_queue: dict[str, int] = {}
        self.unfinished = 0
        """Jobs held whose handlers have not ended."""
        self.unfinished_by_queue: dict[str, int] = {}
        self.ahead = Ahead(config.prefetch, self._loop.time())
        self.exchanges = self.claimed = 0
        self._accepts = True
        self._finishing = False
        self._gave_up = False
        self._unheard = 0
        """How many jobs may have been granted in replies that were lost."""
        self._failures = 0
        self._away_until = self._no_claim_until = 0.0
        self._was_woken = False
        self._wakes = 0
        self._waiting = 0
        """How many workers waited to be woken when the store was last asked in vain."""
        self._doubt = 1
        """How many times fewer of them are believed to look: more after a late look that found jobs."""
        self._is_late = False
        self._later: asyncio.TimerHandle | None = None
        self._registered_at = self._loop.time()
        self._gate: str | None = None

    # --- what others tell it ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Jobs may have arrived, or a held job was asked to stop."""
        others = self._waiting / self._doubt
        if others > FIRST and not self.unfinished and random.random() * others >= FIRST:
            if self._later is None:
                latest = max(LATER_SECONDS, self._config.poll_seconds)
                self._later = self._loop.call_later(random.uniform(LATER_SECONDS, latest), self._look)
            return
        self._wakes += 1
        self._was_woken = True
        self._lanes.wake()
        self.poke()
        if self.unfinished >= self._config.concurrency + self.ahead.jobs:
            self._leases.kick()  # no claim follows, and it may have been a request to stop a job

    def poke(self) -> None:
        """There is something to settle or a slot came free."""
        if self._asleep is not None and not self._asleep.done():
            self._asleep.set_result(None)

    def count_end(self, queue: str) -> None:
        """A handler has ended."""
        self.unfinished -= 1
        self.ahead.ended += 1
        if not self.unfinished:
            self.ahead.run_dry(self._loop.time())
        if self._lanes.is_limited:
            self.unfinished_by_queue[queue] -= 1

    def slow_down(self) -> None:
        """Jobs that were fetched ahead had to be given back: fetch none ahead until the rate asks for it again."""
        self.ahead.stop(self._loop.time())

    def finish(self) -> None:
        """Claim nothing more; end once everything held is settled."""
        self._accepts = False
        self._finishing = True
        self.poke()

    def give_up(self) -> None:
        """End even though outcomes could not be written. Their leases run out."""
        self._gave_up = True
        self.poke()

    def turns(self) -> float:
        """How many times less often each of those who wait may do what one of them has to do."""
        return max(1.0, self._waiting / self._doubt / LOOKERS)

    @property
    def is_away(self) -> bool:
        """Whether the database was not to be reached at the last try."""
        return self._failures > 0

    # --- the loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Exchange until told to finish."""
        async with asyncio.TaskGroup() as flights:
            while not self._is_done():
                if self._left is not None:
                    left, self._left = self._left, None
                    await self._fly(left)
                    continue
                asked = self._next()
                if asked is None:
                    await self._wait()
                elif (idle := self._is_idle and not asked[0]) or self._most_in_flight == 1:
                    await self._exchange(*asked, may_block=idle and self.owns_loop)
                else:
                    flights.create_task(self._exchange(*asked))
                    await asyncio.sleep(0)
        self._not_later()

    @property
    def _is_idle(self) -> bool:
        """Whether nothing runs, nothing waits to run and nothing is on its way."""
        return not (self.unfinished or self._in_flight or len(self._outbox))

    def _is_done(self) -> bool:
        if self._in_flight:
            return False
        if self._gave_up:
            return True
        if self._config.drain and self._accepts and self._lanes.is_dry and not self._held:
            self.finish()
        return self._finishing and not (self._held or len(self._outbox) or self._offer.stands)

    def _next(self) -> tuple[list[Outcome], Ask | None] | None:
        """What the next exchange carries; None while there is nothing to send."""
        if self._in_flight >= self._most_in_flight or self._loop.time() < self._away_until or self._gave_up:
            return None
        if self._in_flight and (self._unheard or self._offer.stands):
            return None  # a repeat must know all that is held, and a claim whether an offer stands: so they fly alone
        ask = self._ask()
        share, waiting = self._share(), len(self._outbox)
        if self._in_flight and max(waiting, 0 if ask is None else ask.limit) < share // 2:
            return None  # too little for a second one
        if ask is None and not waiting:
            return None
        # More than two shares wait where the worker has slowed down since: half of it each time.
        outcomes = self._outbox.take(min(BATCH, max(share, waiting // 2)))
        if ask is None and self._offer.counts and self._may_offer():
            ask = self._lanes.ask_for_none()  # it only offers
        return outcomes, ask

    def _share(self) -> int:
        """How many jobs one exchange settles or claims at most. With two in flight it is a third of what the worker may
        hold, so that while the store carries out one, another lies ready for it and a third is run here."""
        most, flights = self._config.concurrency + self.ahead.jobs, self._most_in_flight
        return min(BATCH, most if flights == 1 else max(SHARE, -(-most // (flights + 1))))

    def _ask(self) -> Ask | None:
        if not self._accepts:  # what was handed over meanwhile is given back
            return self._lanes.ask_for_none() if self._offer.stands else None
        if self._loop.time() < self._no_claim_until:
            return None
        self.ahead.adapt(self._loop.time())
        free = self._free()
        if self._config.once:
            free = min(free, 1 - self._asked)
        if self._unheard:  # ask everywhere, and for as much as may have been granted unheard
            return Ask(self._config.queue_names, max(free, self._unheard), None, ())
        if free <= 0:
            return None
        held = self.unfinished_by_queue
        if self._lanes.is_limited and self._asked_by_queue:
            held = {name: held.get(name, 0) + self._asked_by_queue.get(name, 0) for name in self._config.queue_names}
        most = SHARE if self._may_offer() else self._share()  # a large claim does not offer
        return self._lanes.ask(min(free, most), held)

    def _free(self) -> int:
        """How many more jobs this worker may hold."""
        return self._config.concurrency + self.ahead.jobs - self.unfinished - self._asked

    async def _wait(self) -> None:
        """Sleep until there is news, the poll is due, or the back-off is over."""
        delay = self._poll_seconds() * random.uniform(0.9, 1.0)
        away = self._away_until - self._loop.time()
        timer = self._loop.call_later(away if away > 0 else delay, self._look)
        self._asleep = self._loop.create_future()
        flight = self._arm()
        try:
            await self._asleep
        finally:
            self._asleep = None
            timer.cancel()
            if flight is not None and flight.armed is not None and not flight.armed.disarm() and self._left is None:
                self._leave(flight)  # an enqueue has answered it, and the word is still on its way

    def _arm(self) -> Flight | None:
        """Let the wake-up send the claim that will follow it. Not where somebody else may be first to look."""
        ask = self._lanes.ask_when_woken(min(self._free(), SHARE)) if self._may_arm() else None
        if ask is None:
            return None
        flight = Flight([], ask, Exchange([], self._claim(ask, beats=False)))
        flight.armed_steady = steady_now()
        flight.armed = self.arm(flight.request, lambda: self._leave(flight))
        return flight

    def _may_arm(self) -> bool:
        """Whether this worker would now sleep, and be among the first to look."""
        is_well = self._accepts and not (self._unheard or self._failures or self._gate or self._config.once)
        return is_well and self._is_idle and self.owns_loop and self._waiting / self._doubt <= FIRST

    def _may_offer(self) -> bool:
        """Whether an enqueue may hand a job over, if there is none to claim now."""
        return self._may_arm() and self._lanes.is_known and self.hears() and self._offer.is_wise(self._poll_seconds())

    def _leave(self, flight: Flight) -> None:
        """A wake-up is about to send this one, and to wake us."""
        self._left = flight
        self._depart(flight, wakes=self._wakes + 1)

    def _poll_seconds(self) -> float:
        """How long to sleep without a wake-up: longer where many take turns, unless wake-ups may not arrive."""
        return self._config.poll_seconds * min(SELDOM, self.turns() if self.hears() else 1.0)

    def _look(self) -> None:
        """Look whether there are jobs, whoever says so or not."""
        now = self._loop.time()
        if now - self._registered_at > REGISTER_SECONDS:
            self._registered_at = now
            self._lanes.forget_registration()
        self._not_later()
        self._is_late = True
        self._lanes.wake()
        self.poke()

    def _not_later(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None

    async def _exchange(self, outcomes: list[Outcome], ask: Ask | None, *, may_block: bool = False) -> None:
        claim = None if ask is None else self._claim(ask, beats=not outcomes and self._may_beat(ask))
        flight = Flight(outcomes, ask, Exchange(outcomes, claim))
        self._depart(flight, wakes=self._wakes)
        await self._fly(flight, may_block=may_block)

    async def _fly(self, flight: Flight, *, may_block: bool = False) -> None:
        outcomes, ask, claim = flight.outcomes, flight.ask, flight.request.claim
        arrived: Exchanged | None = None
        try:
            arrived = await (
                flight.armed.answer() if flight.armed else self._store.ado(flight.request, may_block=may_block)
            )
        except StoreUnavailable as exc:
            self._outbox.put_back(outcomes)
            if claim is not None:  # a repeat takes up what was lost before it, so its own limit covers both
                asked = max(1, claim.limit)
                self._unheard = asked if claim.held is not None else self._unheard + asked
            self._back_off(exc)
        except GateClosed as exc:
            self._outbox.put_back(outcomes)
            self._gate_closed(exc)
        except StoreClosed as exc:
            self._report.say("store_closed", ERROR, str(exc), code=exc.code)
            self.give_up()
        except TenureError as exc:
            await self._refused(exc, outcomes)
        finally:
            self._arrive(flight, arrived)
        if arrived is None:
            return
        self.ahead.took(self._loop.time() - flight.sent)
        self._came_back()
        if arrived.beat is not None:
            self._leases.carried(arrived.beat, flight.sent_steady)
        is_stale = flight.wakes != self._wakes
        if outcomes:
            self._outbox.settled(outcomes, arrived.settled)
            if self._config.drain:  # a retry or a follow-up may be due at once, and a claim on its way has not seen it
                self._lanes.wake()
                self._wakes += 1
        if ask is not None:
            self._granted(ask, arrived, flight.granted_since(arrived), is_stale=is_stale)
            if self._lets_runners_go_first():
                await asyncio.sleep(0)

    def _lets_runners_go_first(self) -> bool:
        """Whether runners have a slice before the next exchange, so that what they end goes along with it.

        Where a batch has gathered, and there is room for another, the store need not wait for them: it takes that in
        while they run what just came. And where nothing has come there is nobody to let go first.
        """
        if self._is_idle and self._lanes.is_dry:
            return False
        enough = self._share() // 2
        return len(self._outbox) < enough or self._free() < enough

    # --- around an exchange -------------------------------------------------------------------------------------------

    def _may_beat(self, ask: Ask) -> bool:
        """Whether this claim is a poll that spares a heartbeat, which would be due before the next one.

        Not a look for a job that was just announced, which need not wait for the write; nor the end of a registration,
        for whoever removes dead workers locks that after the row.
        """
        if not self._is_late or ask.wants_wake is False or not self._is_idle:
            return False
        return self._leases.is_due_within(self._poll_seconds())

    def _claim(self, ask: Ask, *, beats: bool) -> Claim:
        return claim_for(
            self._worker,
            ask,
            self._config,
            held=list(self._held) if self._unheard else None,
            beats=beats,
            offers=ask.limit <= SHARE and ask.wants_wake is not False and self._may_offer(),
            offered=self._offer.stands,
        )

    def _depart(self, flight: Flight, *, wakes: int) -> None:
        flight.sent, flight.sent_steady, flight.wakes = self._loop.time(), steady_now(), wakes
        self._in_flight += 1
        self.exchanges += 1
        ask = flight.ask
        self._offer.sent(flight.request.claim)
        if ask is not None:
            self._not_later()  # this is the look that was meant
            self._asked += ask.limit
            if self._lanes.is_limited:
                for name in ask.queues:
                    self._asked_by_queue[name] = self._asked_by_queue.get(name, 0) + ask.limit

    def _arrive(self, flight: Flight, arrived: Exchanged | None) -> None:
        self._in_flight -= 1
        ask, claim = flight.ask, flight.request.claim
        if ask is not None and claim is not None:
            if arrived is not None:
                self._offer.answered(claim, arrived)
            else:  # what was lost is asked for by what is held, and who stops has asked for the last time
                self._offer.refused(claim, is_asked_again=self._accepts and not self._unheard)
            self._asked -= ask.limit
            if self._lanes.is_limited:
                for name in ask.queues:
                    self._asked_by_queue[name] -= ask.limit
        self.poke()

    def _granted(self, ask: Ask, arrived: Exchanged, sent: float, *, is_stale: bool) -> None:
        grants = arrived.grants
        if self._unheard or arrived.age_seconds:
            self._unheard = 0
            grants = [grant for grant in grants if not is_held(grant, self._held)]
        if ask.limit:
            self._learn(ask, arrived, len(grants))
        if isinstance(arrived.refused, GateClosed):
            self._gate_closed(arrived.refused)
        elif arrived.refused is not None:
            self._back_off(arrived.refused)
        else:
            self._gate = None
        if arrived.is_shared is not None and not self._config.exchanges:
            self._most_in_flight = 1 if arrived.is_shared else 2
        if grants:
            self.ahead.go_on(self._loop.time())
            self.claimed += len(grants)
            self.unfinished += len(grants)
            if self._lanes.is_limited:
                for grant in grants:
                    self.unfinished_by_queue[grant.queue] = self.unfinished_by_queue.get(grant.queue, 0) + 1
            self._take(grants, sent)
        else:
            self._waiting = arrived.waiting
            if self._was_woken and self.unfinished:
                self._leases.kick()  # the wake-up was no new job, so it may have been a request to stop one
        self._was_woken = is_stale
        if is_stale:
            self._lanes.wake()  # a job may have arrived after this claim looked, so it is worth asking again
        if self._config.once and self._accepts:
            self.finish()

    def _learn(self, ask: Ask, arrived: Exchanged, granted: int) -> None:
        """Learn from a look. A job that was handed over does not tell whether there are more."""
        self._lanes.answered(ask, 0 if arrived.is_handed_over else granted)
        if self._is_late:
            self._is_late = False
            self._doubt = min(MOST_DOUBT, self._doubt * 4) if granted else max(1, self._doubt // 2)

    # --- trouble ------------------------------------------------------------------------------------------------------

    def _back_off(self, exc: TenureError) -> None:
        self._lanes.forget_registration()
        self._lanes.wake()
        delay = min(BACKOFF_MAX_SECONDS, BACKOFF_SECONDS * 2 ** min(self._failures, 16)) * random.uniform(0.5, 1.0)
        self._failures += 1
        self._away_until = self._loop.time() + delay
        self._report.say(
            "store_away", WARNING, str(exc), code=exc.code, retry_seconds=round(delay, 3), unwritten=len(self._outbox)
        )

    def _came_back(self) -> None:
        if self._failures:
            self._report.say("store_back", INFO, f"the store answers again after {self._failures} tries")
            self._failures = 0

    def _gate_closed(self, exc: GateClosed) -> None:
        """Nothing is granted for now. The poll looks whether the gate is open again; a drain has no more to do."""
        self._no_claim_until = self._loop.time() + self._config.poll_seconds * 0.9
        for lane in self._lanes.lanes:
            lane.is_dry = True
        if self._gate != exc.gate:
            self._gate = exc.gate
            self._report.say("gate_closed", WARNING, str(exc), gate=exc.gate)

    async def _refused(self, exc: TenureError, outcomes: list[Outcome]) -> None:
        """The store refused the request as a whole."""
        if not outcomes:
            self._report.say("claim_refused", ERROR, str(exc), code=exc.code)
            self._back_off(exc)
            return
        try:
            await settle_singly(self._store, self._outbox, outcomes, self._report)
        except StoreUnavailable as away:
            self._back_off(away)

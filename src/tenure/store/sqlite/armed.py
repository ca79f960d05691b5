"""The claim that lies ready while a worker sleeps: a wake-up carries it out, or an enqueue answers it.

What a sleeping worker will ask for is known before it sleeps. So whoever reads the datagram, on the worker's own loop,
carries the claim out in the same breath, and the worker comes to an answer that is already there: all that a worker
does around a claim is then done once, after it, and not half of it before. It is the same claim: the worker counts it
as on its way from the moment before. If somebody else is writing just then, nothing was done, and whoever fetches the
answer asks again in the ordinary way.

**The offer.** Where the claim is simple enough it is also offered to other processes (see `offers`). Who enqueues takes
the offer and grants a job in the very transaction that makes it; the *word*, a datagram with the grant in it, is the
answer. Nothing is sent any more, and nothing committed a second time.

- The claim is carried out, disarmed or offered anew only after its offer was withdrawn. If that fails it was taken up,
  so a grant may exist, and the answer must be fetched.
- *The word is on its way*: the answer waits for it, for `WORD_SECONDS`.
- *It is lost*, because its sender was killed: the answer asks the store for what this worker holds without knowing,
  and gets the same grant, with the same token. That happens at the next poll, and within `RENEW_SECONDS` in any case.
- *It comes later than that*: the nonce in it is not waited for any more, so it is ignored.
- *The worker was stopped in between*: a good part of the lease has passed, so the word is not trusted, and the store is
  asked what still holds.
- *It says that nothing was granted*: then it was a wake-up like any other, and the answer claims.
- *A wake-up of another job found the offer taken*: the answer may not have that job in it, so the worker is woken once
  more, and looks again.

All of this happens on the thread of the subscription's loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, cast

from tenure.errors import GateClosed, StoreUnavailable
from tenure.model.clock import steady_now
from tenure.store.contract import Exchanged
from tenure.store.sqlite.grants import unpack
from tenure.store.sqlite.offers import FRESH_SECONDS, LEASE_SHARE, NOTHING, RENEW_SECONDS, Offering

if TYPE_CHECKING:
    import asyncio

    from tenure.store.contract import Claim
    from tenure.store.sqlite.wake import Listening

UNDONE: Final = object()
"""Instead of an answer: others were at work, and nothing was done."""
WORD_SECONDS: Final = 0.05
"""How long a word is waited for."""


class ArmedClaim:
    """Keeps the contract of `Armed`. `now` carries the claim out, `later` asks in the ordinary way,
    `again` also for what was granted unheard."""

    def __init__(
        self,
        listening: Listening,
        leave: Callable[[], None],
        now: Callable[[], Any],
        later: Callable[[], Awaitable[Exchanged]],
        again: Callable[[], Awaitable[Exchanged]],
    ) -> None:
        self._listening = listening
        self._leave = leave
        self._now = now
        self._later = later
        self._again = again
        self._answer: Any = UNDONE
        self._failure: Exception | None = None
        self._was_sent = False
        self._offering: Offering | None = None
        self._claim: Claim | None = None
        self._offer_until = 0.0
        self._renewal: asyncio.TimerHandle | None = None
        self.nonce: int | None = None
        """Of the offer that stands, or was taken up and whose word is waited for."""
        self._was_taken = False
        self._word: asyncio.Future[None] | None = None

    def offer(self, offering: Offering, claim: Claim, lease_seconds: float) -> None:
        """Let whoever enqueues answer it."""
        self._offering, self._claim = offering, claim
        self._offer_until = steady_now() + lease_seconds / LEASE_SHARE - FRESH_SECONDS
        self._stand()

    def disarm(self) -> bool:
        """Carry it out no more. False if it was, or an enqueue has answered it."""
        self._lie_ready_no_more()
        if not self._was_sent and not self._withdraw():
            self._was_sent = True
        return not self._was_sent

    def carry_out(self) -> None:
        """Before the worker is woken, on its loop's thread."""
        self._lie_ready_no_more()
        self._was_sent = True
        if not self._withdraw():
            self._take_up()
            return
        self._leave()
        try:
            self._answer = self._now()
        except Exception as exc:  # noqa: BLE001 - whoever fetches the answer gets it
            self._failure = exc

    def hand(self, nonce: int, text: str) -> None:
        """The word has come: a grant, that nothing was granted, or that the store must be asked."""
        if nonce != self.nonce:
            return
        self._lie_ready_no_more()
        self._stop_renewing()
        self.nonce = None
        self._was_taken = text != NOTHING
        if self._was_taken and self._claim is not None and steady_now() < self._offer_until + FRESH_SECONDS:
            with contextlib.suppress(ValueError, TypeError):  # then the store is asked
                grant = unpack(text, self._claim.worker, self._claim.queues[0])
                self._answer = Exchanged({}, [grant], is_handed_over=True)
        if self._word is not None and not self._word.done():
            self._word.set_result(None)
        if not self._was_sent:
            self._was_sent = True
            self._leave()
            self._listening.wake_here()

    async def answer(self) -> Exchanged:
        """The answer, once it was carried out or taken up."""
        if self._failure is not None:
            raise self._failure
        if self._was_taken and self.nonce is not None:
            await self._wait_for_the_word()
        if self._answer is not UNDONE:
            return cast(Exchanged, self._answer)
        return await (self._ask() if self._was_taken else self._later())

    async def _ask(self) -> Exchanged:
        """Ask for what was granted unheard. A closed gate says nothing about that, so it must be asked for again."""
        try:
            return await self._again()
        except GateClosed as exc:
            raise StoreUnavailable(f"What an enqueue may have granted to this worker is not known yet: {exc}") from exc

    async def _wait_for_the_word(self) -> None:
        import asyncio

        self._word = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WORD_SECONDS):
                await self._word
        self.nonce = None  # whatever comes now comes too late

    def _stand(self) -> None:
        if self._offering is None or self._claim is None or steady_now() > self._offer_until:
            return
        self.nonce = self._offering.make(self._claim)
        loop = self._listening.loop
        if self.nonce is not None and loop is not None:
            self._listening.offered = self
            self._renewal = loop.call_later(RENEW_SECONDS, self._renew)

    def _renew(self) -> None:
        if self._withdraw():
            self._stand()
        else:
            self._lie_ready_no_more()
            self._was_sent = True
            self._take_up()

    def _take_up(self) -> None:
        """An enqueue has answered it, and the word is still on its way. Of what has brought us here instead the worker
        is woken apart."""
        self._leave()
        self._listening.wake_here()

    def _withdraw(self) -> bool:
        """Take the offer back, if there is one. False if it was taken up."""
        self._stop_renewing()
        if self._offering is None or self.nonce is None:
            return not self._was_taken
        if not self._offering.withdraw():
            self._was_taken = True
            return False
        self.nonce = None
        return True

    def _stop_renewing(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None

    def _lie_ready_no_more(self) -> None:
        if self._listening.armed is self:
            self._listening.armed = None

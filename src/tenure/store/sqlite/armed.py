"""The claim that a wake-up carries out.

What a sleeping worker will ask for is known before it sleeps. So whoever reads the datagram, on the worker's own loop,
carries the claim out in the same breath, and the worker comes to an answer that is already there: all that a worker
does around a claim is then done once, after it, and not half of it before.

It is the same claim: the worker counts it as on its way from the moment before. If somebody else is writing just then,
nothing was done, and whoever fetches the answer asks again in the ordinary way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tenure.store.base import Exchanged
    from tenure.store.sqlite.wake import Listening

UNDONE: Final = object()
"""Instead of an answer: others were at work, and nothing was done."""


class ArmedClaim:
    """Keeps the contract of `tenure.store.base.Armed`."""

    def __init__(
        self,
        listening: Listening,
        leave: Callable[[], None],
        now: Callable[[], Any],
        later: Callable[[], Awaitable[Exchanged]],
    ) -> None:
        self._listening = listening
        self._leave = leave
        self._now = now
        self._later = later
        self._answer: Any = UNDONE
        self._failure: Exception | None = None
        self._was_sent = False

    def disarm(self) -> bool:
        """Carry it out no more. False if it was."""
        if self._listening.armed is self:
            self._listening.armed = None
        return not self._was_sent

    def carry_out(self) -> None:
        """Before the worker is woken, on its loop's thread."""
        self.disarm()
        self._was_sent = True
        self._leave()
        try:
            self._answer = self._now()
        except Exception as exc:  # noqa: BLE001 - whoever fetches the answer gets it
            self._failure = exc

    async def answer(self) -> Exchanged:
        """The answer, once it was carried out."""
        if self._failure is not None:
            raise self._failure
        return await self._later() if self._answer is UNDONE else self._answer

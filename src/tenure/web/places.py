"""What is open at a time: event streams and long polls, bounded for each principal, and streams for each tenant too.

A place is taken when a request is let in, not when its answer begins, so that requests which come at once are bounded
as well. It is free again when the answer has ended, however it ended.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tenure.web.problems import Problem

if TYPE_CHECKING:
    from tenure.web.auth import Principal
    from tenure.web.site import Site

Messages = AsyncGenerator[str, None] | AsyncGenerator[bytes, None]
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Places:
    """Counts what is open, by purpose and holder. Used on the event loop only."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], int] = {}

    def is_free(self, purpose: str, holder: str, most: int) -> bool:
        """Whether a place is left."""
        return self._open.get((purpose, holder), 0) < most

    @contextmanager
    def take(self, purpose: str, holder: str, most: int, refusal: Problem) -> Iterator[None]:
        """One place, for as long as the context lasts. Raises: `refusal`, if so many are open."""
        key = (purpose, holder)
        if not self.is_free(purpose, holder, most):
            raise refusal
        self._open[key] = self._open.get(key, 0) + 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]


@contextmanager
def waiting(site: Site, who: Principal) -> Iterator[None]:
    """A long poll of a principal. Raises: Problem 429."""
    most = site.limits.waiters
    refusal = too_many(f"At most {most} requests of one token may wait at a time.", 1)
    with site.places.take("wait", who.id, most, refusal):
        yield


def may_wait(site: Site, who: Principal) -> bool:
    """Whether a place for a long poll is free."""
    return site.places.is_free("wait", who.id, site.limits.waiters)


def stream(site: Site, who: Principal, messages: Messages) -> StreamingResponse:
    """The answer that sends messages as they come. Raises: Problem 429, if too many streams are open."""
    limits = site.limits
    of_one = too_many(f"At most {limits.streams} streams of one token or session may be open at a time.", 5)
    of_tenant = too_many(f"At most {limits.tenant_streams:,} streams of one tenant may be open at a time.", 5, "quota")
    with ExitStack() as place:
        place.enter_context(site.places.take("stream of", who.id, limits.streams, of_one))
        place.enter_context(site.places.take("streams in", who.tenant, limits.tenant_streams, of_tenant))
        return _Stream(place.pop_all(), messages, media_type="text/event-stream", headers=HEADERS)


class _Stream(StreamingResponse):
    """Holds its place from the moment at which it was let in until it ends."""

    def __init__(self, place: ExitStack, messages: Messages, **settings: Any) -> None:
        super().__init__(messages, **settings)
        self._place = place
        self._messages = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            try:
                await super().__call__(scope, receive, send)
            finally:
                await self._messages.aclose()  # also where it stands between two messages, as its client went away


def too_many(detail: str, seconds: int, code: str = "too_many_requests") -> Problem:
    """A refusal that asks to come again."""
    return Problem(429, code, detail, headers={"Retry-After": str(seconds)})

"""Live events: one tail per tenant and process, fanned out to every viewer as server-sent events.

**Resuming.** A low event number may commit after a higher one, so the highest number that a browser saw says nothing
about the lower ones. The `id` of a message is therefore the tail's settled floor, below which nothing can appear any
more, with the numbers above it that were sent already. A viewer that comes back with it, on this process or another,
is sent what lies above the floor and was not sent: no event is lost, none is shown twice. Ids are signed: a made-up one
is refused.

**Bounds.** A viewer's queue is bounded; one that reads too slowly, or comes back after too long, is told `resync` and
reads its page anew. Whether a viewer may still look is asked each second, once for all streams of one token.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tenure.errors import InvalidArgument
from tenure.web.auth import Principal
from tenure.web.hub import CHECK_SECONDS, Told, Topics, Viewer, to_ranges
from tenure.web.problems import Problem
from tenure.web.site import Site

if TYPE_CHECKING:
    from tenure.app import App

COMMENT_SECONDS: Final = 15.0
RETRY_MS: Final = 3000


async def stream(request: Request, who: Principal, topics: Topics, *, unmasked: bool) -> StreamingResponse:
    """Events as they happen. `Last-Event-ID` resumes. Raises: Problem 400, 429."""
    site: Site = request.state.site
    key = ("stream", who.id)
    given = request.headers.get("last-event-id") or None
    after = None
    if given is not None:
        try:
            after = await site.unsign(who.tenant, "event", given)
        except InvalidArgument as exc:
            raise Problem(400, "invalid_argument", f"Last-Event-ID: {exc}") from exc

    place = ExitStack()
    place.enter_context(site.quotas.stream(who.tenant))
    place.enter_context(_counted(site, key))
    headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    lines = _lines(request, site, who, topics, after, unmasked=unmasked)
    return _Stream(place, lines, media_type="text/event-stream", headers=headers)


class _Stream(StreamingResponse):
    """Holds its place from the moment at which it was let in, also while it is not read yet, until it ends."""

    def __init__(self, place: ExitStack, lines: AsyncIterator[bytes], **settings: Any) -> None:
        super().__init__(lines, **settings)
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            await super().__call__(scope, receive, send)


@contextmanager
def _counted(site: Site, key: tuple[str, str]) -> Iterator[None]:
    if site.in_use.get(key, 0) >= site.limits.streams:
        raise Problem(429, "too_many_requests", f"At most {site.limits.streams} streams may be open at a time.",
                      headers={"Retry-After": "5"})  # fmt: skip
    site.in_use[key] = site.in_use.get(key, 0) + 1
    try:
        yield
    finally:
        site.in_use[key] -= 1
        if not site.in_use[key]:
            del site.in_use[key]


async def _lines(
    request: Request, site: Site, who: Principal, topics: Topics, after: Any, *, unmasked: bool
) -> AsyncIterator[bytes]:
    viewer = Viewer(topics, site.limits.stream_queue)
    tail = site.hub.tail(who.tenant, who.app)
    await tail.attach(viewer)
    try:
        yield f"retry: {RETRY_MS}\n\n".encode()
        sent: set[int] = set()
        if after is not None:
            async for told in _missed(who.app, topics, after, site.limits.stream_queue * 10):
                if told.event is not None:
                    sent.add(told.event.seq)
                yield await _message(site, who, told, unmasked=unmasked)
        else:
            yield await _message(site, who, Told(None, tail.place), unmasked=unmasked, name="ready")
        said_at = time.monotonic()
        while await site.hub.may_look(who):
            taken = await viewer.take(CHECK_SECONDS)
            for told in taken:
                if told.event is None or told.event.seq not in sent:
                    yield await _message(site, who, told, unmasked=unmasked)
            if taken:
                said_at = time.monotonic()
            elif time.monotonic() - said_at >= COMMENT_SECONDS:
                said_at = time.monotonic()
                yield b": still here\n\n"
            if await request.is_disconnected():
                return
        yield b"event: end\ndata: {}\n\n"
    finally:
        tail.detach(viewer)


async def _missed(app: App, topics: Topics, after: Any, most: int) -> AsyncIterator[Told]:
    """What a viewer that comes back was not sent, from the store. Too much of it, or none any more: read anew."""
    floor, ranges = int(after[0]), [[int(a), int(b)] for a, b in after[1]]
    oldest = await app.aio.events(limit=1)
    if oldest and floor and oldest[0].seq > floor + 1 and not _covers(ranges, oldest[0].seq):
        yield Told(None, (floor, ranges))
    seen = {seq for first, last in ranges for seq in range(first, last + 1)}
    at, count = floor, 0
    while True:
        page = await app.aio.events(after=at, limit=1000)
        for event in page:
            count += 1
            if event.seq not in seen:
                seen.add(event.seq)
                if topics.wants(event):
                    yield Told(event, (floor, to_ranges(seen)))
        if len(page) < 1000:
            return
        if count >= most:
            yield Told(None, (floor, to_ranges(seen)))
            return
        at = page[-1].seq


def _covers(ranges: Sequence[Sequence[int]], seq: int) -> bool:
    return any(first <= seq <= last for first, last in ranges)


async def _message(site: Site, who: Principal, told: Told, *, unmasked: bool, name: str = "resync") -> bytes:
    identity = await site.sign(who.tenant, "event", list(told.place))
    if told.event is None:
        return f"id: {identity}\nevent: {name}\ndata: {{}}\n\n".encode()
    event = told.event
    data = {
        "seq": event.seq,
        "at": event.at.isoformat().replace("+00:00", "Z"),
        "kind": event.kind,
        "job_id": event.job_id,
        "queue": event.queue,
        "data": event.data if unmasked else None,
        "masked": not unmasked,
    }
    # The name of the message is fixed: an event's kind is a handler's text, and must not make lines of its own.
    return f"id: {identity}\nevent: job\ndata: {json.dumps(data)}\n\n".encode()

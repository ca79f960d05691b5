"""Live events: one tail per tenant and process, fanned out to every viewer as server-sent events.

**Resuming.** A low event number may commit after a higher one, so the highest number that a browser saw says nothing
about the lower ones. The `id` of a message is therefore a place among commits (store.queries.FollowEvents). A viewer
that comes back with it, on this process or another, is sent what was committed from there to the place at which the
tail takes it over: no event is lost, none is shown twice. Ids are signed: a made-up one is refused.

**Bounds.** A viewer's queue is bounded; one that reads too slowly, or comes back after too long, is told `resync` and
reads its page anew. Whether a viewer may still look is asked each second, once for all streams of one token.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import StreamingResponse

from tenure.errors import InvalidArgument
from tenure.observe.follow import committed_between
from tenure.web import places
from tenure.web.auth import Principal
from tenure.web.hub import CHECK_SECONDS, Place, Told, Topics, Viewer
from tenure.web.problems import Problem
from tenure.web.site import Site

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.model.event import Event

COMMENT_SECONDS: Final = 15.0
RETRY_MS: Final = 3000


async def stream(request: Request, who: Principal, topics: Topics, *, unmasked: bool) -> StreamingResponse:
    """Events as they happen. `Last-Event-ID` resumes. Raises: Problem 400, 429."""
    site: Site = request.state.site
    given = request.headers.get("last-event-id") or None
    after = None
    if given is not None:
        try:
            after = Place(*await site.unsign(who.tenant, "event", given))
        except InvalidArgument as exc:
            raise Problem(400, "invalid_argument", f"Last-Event-ID: {exc}") from exc
    return places.stream(site, who, _lines(request, site, who, topics, after, unmasked=unmasked))


async def _lines(
    request: Request, site: Site, who: Principal, topics: Topics, after: Place | None, *, unmasked: bool
) -> AsyncGenerator[bytes, None]:
    viewer = Viewer(topics, site.limits.stream_queue)
    tail = site.hub.tail(who.tenant, who.app)
    try:
        yield f"retry: {RETRY_MS}\n\n".encode()
        joined = await tail.attach(viewer)
        if after is not None:
            async for told in _missed(who.app, topics, after, joined, site.limits.stream_queue * 10):
                yield await _message(site, who, told, unmasked=unmasked)
        else:
            yield await _message(site, who, Told(None, joined), unmasked=unmasked, name="ready")
        said_at = time.monotonic()
        while await site.hub.may_look(who):
            taken = await viewer.take(CHECK_SECONDS)
            for told in taken:
                yield await _message(site, who, told, unmasked=unmasked)
                if not await site.hub.may_look(who):  # a slow reader may have been held up here
                    break
            if taken:
                said_at = time.monotonic()
            elif time.monotonic() - said_at >= COMMENT_SECONDS:
                said_at = time.monotonic()
                yield b": still here\n\n"
            if await site.has_left(request):
                return
        yield b"event: end\ndata: {}\n\n"
    finally:
        tail.detach(viewer)


async def _missed(app: App, topics: Topics, left: Place, joined: Place, most: int) -> AsyncIterator[Told]:
    """What a viewer that comes back was not sent, from the store. Too much of it, or none any more: read anew."""
    oldest = await app.aio.events(limit=1)
    if oldest and left.seq and oldest[0].seq > left.seq + 1:
        yield Told(None, joined)
        return
    at, count = left.since, 0
    for until, behind in ((left.until, left.seq), (joined.since, 0)):
        while at != until:
            found = await asyncio.to_thread(committed_between, app.store, at, until)
            for event in found.events:
                if event.seq > behind and topics.wants(event):
                    yield Told(event, Place(at, found.place, event.seq))
            at = found.place
            count += len(found.events)
            if count >= most and found.more:
                yield Told(None, joined)
                return


async def _message(site: Site, who: Principal, told: Told, *, unmasked: bool, name: str = "resync") -> bytes:
    if told.event is None:
        identity = await site.sign(who.tenant, "event", list(told.place))
        return f"id: {identity}\nevent: {name}\ndata: {{}}\n\n".encode()
    if unmasked not in told.messages:
        identity = await site.sign(who.tenant, "event", list(told.place))
        told.messages[unmasked] = _job_message(told.event, identity, unmasked=unmasked)
    return told.messages[unmasked]


def _job_message(event: Event, identity: str, *, unmasked: bool) -> bytes:
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

"""The streams of a job: what it gives out while it runs, by offset, as JSON or as it comes."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from contextlib import nullcontext
from typing import Annotated, Any, Final

from fastapi import Header, Path, Query, Request, Response

from tenure.model.job import Job
from tenure.model.stream import Chunk
from tenure.web import places
from tenure.web.api.jobs import Id, Rows, find
from tenure.web.api.shapes import Answer, Here, JsonAnswer, Who, WithSlashes, plain
from tenure.web.auth import Principal, path_of
from tenure.web.problems import Problem
from tenure.web.routes import Route
from tenure.web.site import Site

COMMENT_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 2.0
"""How long one look waits for a chunk before the reader's right to look is asked again."""
RETRY_MS: Final = 3000

Name = Annotated[
    str, Path(max_length=255, description="The stream's name; handlers write to `output` by default."), WithSlashes
]


class StreamRead(Answer):
    """Chunks behind `after`, in order. `ended`: the job has ended and nothing follows; otherwise ask again with `next`.
    A chunk of kind `reset` says that another attempt begins: drop what you have."""

    chunks: list[dict[str, Any]]
    next: int
    ended: bool


async def list_streams(who: Who, id: Id) -> Response:  # noqa: A002
    """List the streams that a job has written to."""
    job = await find(who, id)
    found = await who.app.aio.streams.names(job.id)
    return JsonAnswer({"items": [plain(one) for one in found]})


async def read_stream(
    request: Request,
    site: Here,
    who: Who,
    id: Id,  # noqa: A002
    name: Name,
    after: Annotated[int, Query(ge=0, lt=2**62, description="Only chunks behind this offset.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    wait: Annotated[float, Query(ge=0, le=25, description="Seconds to wait for a chunk, if there is none.")] = 0.0,
    accept: Annotated[str, Header(max_length=1000)] = "",
    last_event_id: Annotated[str | None, Header(max_length=100)] = None,
) -> Response:
    """Read a stream; with `Accept: text/event-stream`, follow it until the job has ended (Last-Event-ID resumes)."""
    job = await find(who, id)
    detail = {"token": who.token_id, "address": who.address, "stream": name, "request": request.state.request_id}
    await who.app.aio.access.note("http:read_stream", path_of(request)[:200], actor=who.name, detail=detail)
    if "text/event-stream" in accept:
        messages = _messages(request, site, who, job, name, _offset(last_event_id, after))
        return places.stream(site, who, messages)
    with places.waiting(site, who) if wait > 0 else nullcontext():
        page = await who.app.aio.streams.read(job.id, name, after=after, limit=limit, wait=wait)
    place = page.chunks[-1].offset if page.chunks else after
    return JsonAnswer({"chunks": [shown(chunk) for chunk in page.chunks], "next": place, "ended": page.is_ended})


def shown(chunk: Chunk) -> dict[str, Any]:
    """A chunk as an object. Its token is the worker's and is not told."""
    return {"offset": chunk.offset, "kind": chunk.kind, "text": chunk.text, "at": plain(chunk.at)}


def _offset(last_event_id: str | None, after: int) -> int:
    if last_event_id is None:
        return after
    if not last_event_id.isascii() or not last_event_id.isdigit() or len(last_event_id) > 18:
        raise Problem(400, "invalid_argument", "Last-Event-ID: the offset of a chunk was expected.")
    return int(last_event_id)


async def _messages(
    request: Request, site: Site, who: Principal, job: Job, name: str, after: int
) -> AsyncGenerator[str, None]:
    """Every chunk behind `after`, each with its offset as id; `end` when the job has ended."""
    yield f"retry: {RETRY_MS}\n\n"
    said_at = time.monotonic()
    while await site.hub.may_look(who):
        page = await who.app.aio.streams.read(job.id, name, after=after, wait=LOOK_SECONDS)
        for chunk in page.chunks:
            yield f"id: {chunk.offset}\nevent: {chunk.kind}\ndata: {json.dumps(shown(chunk))}\n\n"
            after = chunk.offset
        if page.is_ended:
            yield "event: end\ndata: {}\n\n"
            return
        if page.chunks:
            said_at = time.monotonic()
        elif time.monotonic() - said_at >= COMMENT_SECONDS:
            said_at = time.monotonic()
            yield ": still here\n\n"
        if await site.has_left(request):
            return


_V: Final = "/api/v1/jobs/{id}/streams"
ROUTES: Final = (
    Route("GET", _V, "read:meta", None, list_streams, "jobs", answers=Rows),
    Route("GET", _V + "/{name}", "read:payload", None, read_stream, "jobs", answers=StreamRead),
)

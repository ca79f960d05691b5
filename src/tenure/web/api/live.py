"""Events as they happen."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Header, Query, Request, Response

from tenure.web import events
from tenure.web.api.shapes import Unmasked, Who
from tenure.web.hub import parse_topics
from tenure.web.routes import Route


async def stream(
    request: Request,
    who: Who,
    unmasked: Unmasked,
    topics: Annotated[str, Query(max_length=2000, description="jobs, queue:NAME, job:ID; by commas.")] = "jobs",
    last_event_id: Annotated[str | None, Header(max_length=4000)] = None,  # noqa: ARG001  read by the stream itself
) -> Response:
    """Follow events as a stream (text/event-stream); the header Last-Event-ID resumes it."""
    return await events.stream(request, who, parse_topics(topics), unmasked=unmasked)


ROUTES: Final = (Route("GET", "/api/v1/events", "read:meta", None, stream, "events", is_text=True),)

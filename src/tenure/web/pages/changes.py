"""`/ui/changes`: a stream that says when what the page shows has changed. The page then asks for itself anew.

A message carries no data of jobs, so nothing leaks by it, and nothing is lost when one is: a tab that connects again is
told at once if the marker differs from the one it names (Last-Event-ID), or from the one that its page was made with
(`seen`): a change between the making of a page and its first connection is not lost. `seen` is made from what the page
read first, so it is never newer than the page; a page without one (its look was not there yet) is told at once.

Markers are made from the look that all viewers share, or from the one job that a page shows; a stream costs no query of
its own beyond that. Tabs beyond the fourth ask for the marker alone, by `once`: browsers open six connections to a
host, and a stream keeps one. For that reason the output of a job comes by the same stream, as `chunk` messages behind
the offset `after`, for those who may read payloads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tenure.errors import NotFound, TenureError
from tenure.model.visible import visible_lines
from tenure.observe.browse import first_steps
from tenure.web import places
from tenure.web.pages.filter_words import is_job_id
from tenure.web.pages.pulse import Look, Pulse, digest
from tenure.web.problems import Problem

if TYPE_CHECKING:
    from tenure import Budget, Effect, Limiter
    from tenure.app import App
    from tenure.model.event import Event
    from tenure.model.job import Job
    from tenure.model.step import Step
    from tenure.model.stream import Chunk
    from tenure.web.auth import Principal
    from tenure.web.site import Site

EVERY_SECONDS: Final = 1.0
EVENTS: Final = 1_000
EFFECTS: Final = 200
STEPS: Final = 200
"""How much of a job a page shows, and its marker covers."""
BUDGETS: Final = 100
"""How many budgets one page shows."""
COMMENT_EVERY: Final = 15
"""Rounds without a message after which a comment keeps proxies from closing the connection."""


async def changes(request: Request, pulse: Pulse) -> Response:
    """The stream. Raises: Problem 400, 429."""
    who: Principal = request.state.principal
    site: Site = request.state.site
    topic = request.query_params.get("topic", "")
    marker = _marker(who.app, pulse, topic)
    if "once" in request.query_params:
        return Response(await run_in_threadpool(marker), media_type="text/plain")
    shared = partial(
        site.hub.shared, ("marker", who.tenant, topic), EVERY_SECONDS / 2, lambda: run_in_threadpool(marker)
    )
    known, _, after = (request.headers.get("last-event-id") or _first_id(request)).partition("@")
    output = _output(who, topic, request.query_params.get("output", ""), after)
    return places.stream(site, who, _messages(request, site, who, shared, known, output))


@dataclass
class Output:
    """The stream of a job that a page shows, and how far it has it."""

    app: App
    job_id: str
    name: str
    after: int

    async def chunks(self) -> list[Chunk]:
        """What came since; waits for it as long as the marker is not due to be looked at again."""
        page = await self.app.aio.streams.read(self.job_id, self.name, after=self.after, wait=EVERY_SECONDS)
        if page.chunks:
            self.after = page.chunks[-1].offset
        if not page.chunks and page.is_ended:
            await asyncio.sleep(EVERY_SECONDS)
        return page.chunks


def _first_id(request: Request) -> str:
    return f"{request.query_params.get('seen', '')}@{request.query_params.get('after', '')}"


def _output(who: Principal, topic: str, name: str, after: str) -> Output | None:
    job_id = topic.partition(":")[2]
    if not name or not topic.startswith("job:") or not who.may("read:payload"):
        return None
    is_offset = after.isascii() and after.isdigit() and len(after) <= 18
    return Output(who.app, job_id, name[:255], int(after) if is_offset else 0)


def _marker(app: App, pulse: Pulse, topic: str) -> Callable[[], str]:
    name, _, value = topic.partition(":")
    if name == "all" and not value:
        return lambda: board_marker(pulse.now())
    own: Callable[[], str] | None = None
    if name == "job" and is_job_id(value):
        own = partial(job_marker, app, value)
    elif name == "workflow" and is_job_id(value):
        own = partial(workflow_marker, app, value)
    elif topic in LISTS:
        own = partial(LISTS[topic], app)
    if own is not None:
        return lambda: with_shell(own(), pulse.now())
    known = ", ".join(("all", *LISTS, "job:ID and workflow:ID"))
    raise Problem(400, "invalid_argument", f"There is no such topic. Topics are {known}.")


def with_shell(marker: str, look: Look | None) -> str:
    """The marker of what a page shows, and of what stands around every page and needs a person."""
    if look is None:
        return marker
    return f"{marker}.{digest(look.pending_groups, look.asking, look.shut_gates, look.health.verdict)[:8]}"


def job_marker(app: App, job_id: str) -> str:
    """Changes when the job does, a step or an effect of it, or when something is logged for it."""
    (found,) = app.get_many([job_id])
    if found is None:
        return "gone"
    events = app.events(job_id=job_id, limit=EVENTS)
    return marker_of(
        found, events, app.effects.all(job_id=job_id, limit=EFFECTS).items, first_steps(app.store, job_id, STEPS)
    )


def marker_of(found: Job, events: Sequence[Event], effects: Sequence[Effect], steps: Sequence[Step]) -> str:
    """The marker of a job that is at hand."""
    told = (found.state, found.token, found.updated_at, found.progress, found.cancel_requested_at, found.cleaned_at)
    return digest(
        told,
        events[-1].seq if events else 0,
        [(one.name, one.step, one.state, one.updated_at) for one in effects],
        [(one.key, one.state, one.ended_at) for one in steps],
    )


def workflow_marker(app: App, workflow_id: str) -> str:
    """Changes when a task of it ends or starts."""
    try:
        return workflow_marker_of(app.workflows.get(workflow_id))
    except NotFound:
        return "gone"


def workflow_marker_of(found: object) -> str:
    """The marker of a workflow that is at hand."""
    return digest(found)


def budgets_marker(app: App) -> str:
    """Changes when a budget does, or the jobs that wait for one."""
    return budgets_marker_of(app.budgets.all(limit=BUDGETS))


def budgets_marker_of(found: Sequence[Budget]) -> str:
    """The marker of budgets that are at hand."""
    return digest([(one.name, one.limit, one.used, one.reserved, one.waiting, one.on_empty) for one in found])


def limits_marker(app: App) -> str:
    """Changes when a limiter does, or when a block ends."""
    now = app.now()
    return limits_marker_of(app.limits.all(), now)


def limits_marker_of(found: Sequence[Limiter], now: datetime) -> str:
    """The marker of limiters that are at hand."""
    return digest(
        [(one.key, one.per_minute, one.tokens_per_minute, one.strikes, one.blocked_until) for one in found],
        [one.blocked_until is not None and one.blocked_until > now for one in found],
    )


LISTS: Final[Mapping[str, Callable[[App], str]]] = {"budgets": budgets_marker, "limits": limits_marker}
"""Topics of pages that show one list."""


def board_marker(look: Look | None) -> str:
    """Changes when what all pages share does."""
    return "" if look is None else look.marker


async def _messages(
    request: Request,
    site: Site,
    who: Principal,
    marker: Callable[[], Awaitable[str]],
    known: str,
    output: Output | None,
) -> AsyncGenerator[str, None]:
    yield "retry: 3000\n\n"
    quiet = 0
    while True:
        try:
            now = await marker()
        except TenureError:
            now = known  # the database is away: the page says so when it is asked for again
        said = False
        if now and now != known:
            place = _place(now, output)
            yield f"id: {place}\nevent: change\ndata: {now}\n\n"
            known, said = now, True
        if output is None:
            await asyncio.sleep(EVERY_SECONDS)
        else:
            for chunk in await output.chunks():
                told = json.dumps({"kind": chunk.kind, "text": visible_lines(chunk.text), "offset": chunk.offset})
                yield f"id: {known}@{chunk.offset}\nevent: chunk\ndata: {told}\n\n"
                said = True
        quiet = 0 if said else quiet + 1
        if quiet >= COMMENT_EVERY:
            yield ": still here\n\n"
            quiet = 0
        if await site.has_left(request):
            return
        if not await site.hub.may_look(who):
            yield "event: change\ndata: signed out\n\n"  # the page asks for itself, and is told to sign in
            return


def _place(marker: str, output: Output | None) -> str:
    return marker if output is None else f"{marker}@{output.after}"

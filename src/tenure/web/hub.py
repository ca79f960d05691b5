"""One tail per tenant and process, fanned out to bounded queues of viewers. See web/events.py for what it promises."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from tenure.errors import InvalidArgument, TenureError
from tenure.model.event import Event
from tenure.model.frozen import frozen
from tenure.observe.follow import Follower

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.web.auth import Principal

POLL_SECONDS: Final = 0.25
CHECK_SECONDS: Final = 1.0
ASKED_MOST: Final = 10_000
TOPICS_MOST: Final = 20

T = TypeVar("T")
_log: Final = logging.getLogger("tenure.web")


class Place(NamedTuple):
    """Where a viewer resumes: it has seen all that was committed before `since`, and of what was committed from there
    to `until` the events up to number `seq`."""

    since: str
    until: str
    seq: int


@frozen
class Told:
    """An event with the place to resume from after it. None stands for: read anew."""

    event: Event | None
    place: Place
    messages: dict[bool, bytes] = field(default_factory=dict, compare=False)
    """What is sent of it, unmasked or not: made once for all viewers."""


@frozen
class Topics:
    """What a viewer wants to hear of. Empty ones stand for everything."""

    queues: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()

    def wants(self, event: Event) -> bool:
        """Whether the event is one of these."""
        if not self.queues and not self.jobs:
            return True
        return event.queue in self.queues or event.job_id in self.jobs


def parse_topics(text: str) -> Topics:
    """From `jobs`, `queue:mail,job:ID`. Raises: InvalidArgument."""
    queues, jobs = set(), set()
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > TOPICS_MOST:
        raise InvalidArgument(f"topics: at most {TOPICS_MOST} may be named.")
    for part in parts:
        word, _, value = part.partition(":")
        if part == "jobs":
            continue
        if word == "queue" and value:
            queues.add(value)
        elif word == "job" and value:
            jobs.add(value.lower())
        else:
            raise InvalidArgument(f"topics: {part[:80]!r} is none. Topics are jobs, queue:NAME and job:ID.")
    return Topics() if "jobs" in parts else Topics(frozenset(queues), frozenset(jobs))


class Viewer:
    """One stream's queue. Bounded: when it is full, its viewer is told to read anew."""

    def __init__(self, topics: Topics, most: int) -> None:
        self._topics = topics
        self._most = most
        self._told: list[Told] = []
        self._is_there = asyncio.Event()

    def put(self, told: Told) -> None:
        """Hand an event over, if the viewer wants it."""
        if told.event is not None and not self._topics.wants(told.event):
            return
        if len(self._told) >= self._most:
            self._told = [Told(None, told.place)]
        else:
            self._told.append(told)
        self._is_there.set()

    async def take(self, seconds: float) -> list[Told]:
        """What came, waiting for it so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_there.wait()
        self._is_there.clear()
        taken, self._told = self._told, []
        return taken


class Tail:
    """Follows a tenant's events while there is a viewer."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._viewers: set[Viewer] = set()
        self._joining: dict[Viewer, asyncio.Future[Place]] = {}
        self._task: asyncio.Task[None] | None = None

    async def attach(self, viewer: Viewer) -> Place:
        """Let a viewer hear all that is committed behind the place that is answered. It is later than any place that
        a server of this database gave before the call: a look that begins after it decides."""
        joined: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._joining[viewer] = joined
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await joined

    def detach(self, viewer: Viewer) -> None:
        """Forget a viewer. The tail ends by itself after the last one."""
        self._viewers.discard(viewer)
        self._joining.pop(viewer, None)

    async def _run(self) -> None:
        follower: Follower | None = None
        while self._viewers or self._joining:
            joining = list(self._joining)
            try:
                if follower is None:
                    follower = Follower(await asyncio.to_thread(lambda: self._app.store))
                place = await self._look(follower)
            except Exception as exc:  # noqa: BLE001  whatever it is, viewers wait here for the next look
                _log.warning("Events could not be read: %s", exc, exc_info=not isinstance(exc, TenureError))
                await asyncio.sleep(CHECK_SECONDS)
                continue
            for viewer in joining:
                joined = self._joining.pop(viewer, None)
                if joined is not None and not joined.done():
                    self._viewers.add(viewer)
                    joined.set_result(place)
            await asyncio.sleep(POLL_SECONDS)

    async def _look(self, follower: Follower) -> Place:
        """Tell the viewers what is new, and answer how far that goes."""
        while True:
            since = follower.place
            found = await asyncio.to_thread(follower.poll)
            last = len(found.events) - 1
            for number, event in enumerate(found.events):
                begin = found.place if number == last or since is None else since
                self._tell(Told(event, Place(begin, found.place, event.seq)))
            if not found.more:
                return Place(found.place, found.place, found.newest)

    def _tell(self, told: Told) -> None:
        for viewer in self._viewers:
            viewer.put(told)


class Hub:
    """The tails of one server, and what its streams ask again and again."""

    def __init__(self) -> None:
        self._tails: dict[str, Tail] = {}
        self._asked: dict[tuple[str, ...], tuple[float, asyncio.Task[Any]]] = {}

    def tail(self, tenant: str, app: App) -> Tail:
        """The tail of a tenant; one for all its viewers."""
        if tenant not in self._tails:
            self._tails[tenant] = Tail(app)
        return self._tails[tenant]

    async def may_look(self, who: Principal) -> bool:
        """Whether the token or session is still valid. Asked once a second for all streams of one."""
        return await self.shared(("may look", who.id), CHECK_SECONDS, lambda: _is_valid(who))

    async def shared(self, key: tuple[str, ...], seconds: float, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `ask` answers, asked once in so many seconds for all streams that want it. Raises what it raises."""
        at, asking = self._asked.get(key, (0.0, None))
        if asking is None or time.monotonic() - at >= seconds:
            if len(self._asked) > ASKED_MOST:
                self._asked.clear()
            asking = asyncio.create_task(ask())
            self._asked[key] = (time.monotonic(), asking)
        found: T = await asyncio.shield(asking)
        return found


async def _is_valid(who: Principal) -> bool:
    try:
        return await who.app.aio.access.is_valid(token_id=who.token_id, session=who.session)
    except TenureError:
        return True  # the database is away: the stream says so by its silence, and the next look decides

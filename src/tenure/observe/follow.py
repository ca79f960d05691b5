"""Following events: each is seen once, none is missed.

A low event number may commit after a higher one, so the newest second is read again at every look, and what was seen
in it is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from tenure.model.event import Event
from tenure.model.ids import JobId
from tenure.store.contract import Store
from tenure.store.queries import ListEvents
from tenure.store.summary import Inspect

LATE = timedelta(seconds=2)
"""Twice what the store promises: an event older than this has no unseen predecessor."""
PAGE = 1000


class Follower:
    """Reads on from event number `after`."""

    def __init__(
        self,
        store: Store,
        *,
        after: int = 0,
        job_id: str | None = None,
        queues: Sequence[str] = (),
        kinds: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._floor = after
        self._seen: set[int] = set()
        self._job_id = None if job_id is None else JobId(job_id)
        self._queues = queues
        self._kinds = kinds

    @property
    def floor(self) -> int:
        """Nothing that is not seen yet can appear at or below this number."""
        return self._floor

    def poll(self) -> list[Event]:
        """What is new since the last look, in order."""
        new: list[Event] = []
        after = self._floor
        settled = self._store.now() - LATE
        while True:
            page = self._store.do(ListEvents(after, self._job_id, self._queues, self._kinds, PAGE))
            for event in page:
                if event.seq not in self._seen:
                    self._seen.add(event.seq)
                    new.append(event)
                if event.at <= settled and event.seq > self._floor:
                    self._floor = event.seq
            if len(page) < PAGE:
                break
            after = page[-1].seq
        self._seen = {seq for seq in self._seen if seq > self._floor}
        return new


def settled_floor(store: Store) -> int:
    """The highest event number below which nothing can appear any more: where a follower begins that wants new ones."""
    settled = store.now() - LATE
    newest = store.do(Inspect()).last_event
    back = PAGE
    while True:
        after = max(0, newest - back)
        page = store.do(ListEvents(after, limit=PAGE))
        old = [event.seq for event in page if event.at <= settled]
        if old or after == 0:
            return max(old, default=after)
        back *= 4

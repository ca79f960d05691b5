"""Following events: each is seen once, none is missed, however late its transaction was committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tenure.model.ids import JobId
from tenure.store.contract import Store
from tenure.store.queries import Followed, FollowEvents

PAGE: Final = 1000


class Follower:
    """Reads on from event number `after`, or without it from now: the first poll then finds nothing."""

    def __init__(
        self,
        store: Store,
        *,
        after: int | None = None,
        job_id: str | None = None,
        queues: Sequence[str] = (),
        kinds: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._after = after
        self._place: str | None = None
        self._job_id = None if job_id is None else JobId(job_id)
        self._queues = queues
        self._kinds = kinds

    @property
    def place(self) -> str | None:
        """What was committed before it has been seen; None before the first poll."""
        return self._place

    def poll(self) -> Followed:
        """What is new since the last poll, PAGE events at most."""
        found = self._store.do(
            FollowEvents(self._place, None, self._after, self._job_id, self._queues, self._kinds, PAGE)
        )
        self._place = found.place
        return found


def committed_between(store: Store, since: str, until: str) -> Followed:
    """What was committed between two places that a follower had, PAGE events at most; goes on from its own place."""
    return store.do(FollowEvents(since, until, limit=PAGE))

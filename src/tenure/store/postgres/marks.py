"""Low-water marks: where the last large claim stopped, per filter (queues, kinds, affinity), queue and rank.

While a transaction holds an old snapshot, PostgreSQL cannot forget index entries of rows that have moved on, and every
claim would walk them again. A claim that starts where the last one stopped does not. What may appear below a mark (a
job given back, a transaction that commits late, a rank that is new) is found by a full look, made at least once a
second and whenever marks give too little.

Small claims never use marks on queues: they always look at the front, so a more urgent job is never passed over.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tenure.model.frozen import frozen
from tenure.model.state import ALONE_FROM
from tenure.store.contract import Claim

FULL_LOOK_SECONDS: Final = 1.0
"""Everything is looked at again this often."""
LARGE: Final = 50
"""Claims of at least this many jobs use the marks of queues."""
MOST_RANKS: Final = 32
"""A queue with jobs at more ranks than this is looked at in full."""
MOST_FILTERS: Final = 64
"""Callers that ask with more different filters than this start over with full looks."""

_Filter = tuple[Sequence[Any] | None, ...]


@frozen
class Given:
    """The marks for one claim."""

    json: str
    is_full: bool
    """It asks for a full look, so its answer replaces all marks."""


class Marks:
    """The marks of one store object. A claim with other kinds or affinity keys passes over other jobs, so each filter
    has marks of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._books: dict[_Filter, _Book] = {}

    def give(self, claim: Claim) -> Given:
        """The marks for this claim."""
        with self._lock:
            book = self._books.get(_filter(claim))
            is_full = book is None or time.monotonic() - book.looked > FULL_LOOK_SECONDS
            asked: dict[str, Any] = {}
            if book is not None and not is_full:
                asked = {"expired": book.expired_us, "due": book.due_us}
            if claim.limit >= LARGE:
                known = book.queues if book is not None and not is_full else {}
                asked["queues"] = {
                    name: [[rank, *mark] for rank, mark in ranks.items()] for name, ranks in known.items()
                }
            return Given(json.dumps(asked), is_full=is_full)

    def take(self, claim: Claim, granted: Any, given: Given) -> None:
        """Note where a claim stopped."""
        with self._lock:
            key = _filter(claim)
            book = self._books.get(key)
            if book is None or given.is_full:
                if book is None and len(self._books) >= MOST_FILTERS:
                    self._books.clear()
                book = self._books[key] = _Book(time.monotonic())
            book.expired_us, book.due_us = granted["expired"], granted["due"]
            if claim.limit >= LARGE:
                for name, last in _last_of_each_rank(granted):
                    ranks = book.queues.setdefault(name, {})
                    for rank, mark in last.items():
                        ranks[rank] = max(ranks.get(rank, mark), mark)
                    if len(ranks) > MOST_RANKS:
                        del book.queues[name]


def _filter(claim: Claim) -> _Filter:
    return (
        tuple(claim.queues),
        None if claim.kinds is None else tuple(claim.kinds),
        None if claim.affinity is None else tuple(claim.affinity),
    )


def _last_of_each_rank(granted: Any) -> Iterator[tuple[str, dict[int, tuple[int, str]]]]:
    """By queue, where the claim stopped at each rank. A line is in claim order. Jobs granted again, jobs with a limiter
    and jobs to run alone are in lists of their own, which have no marks."""
    for name, _, _, rows in granted["lines"][granted["again"] :]:  # each job granted again is a line of its own
        plain = (row for row in rows if row[11] < ALONE_FROM and "limiter" not in (row[10] or ()))
        yield name, {row[8]: (row[9], row[0]) for row in plain}


class _Book:
    __slots__ = ("due_us", "expired_us", "looked", "queues")

    def __init__(self, looked: float) -> None:
        self.looked = looked
        self.expired_us: int | None = None
        self.due_us: int | None = None
        self.queues: dict[str, dict[int, tuple[int, str]]] = {}

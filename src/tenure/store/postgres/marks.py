"""Low-water marks: where the last large claim stopped, per queue and rank.

While somebody holds an old snapshot, PostgreSQL cannot forget index entries of rows that have moved on, and every
claim would walk them again. A claim that starts where the last one stopped does not. What may appear below a mark (a
job given back, a transaction that commits late, a rank that is new) is found by a full look, made at least once a
second and whenever marks give too little.

Small claims never use marks on queues: they always look at the front, so a more urgent job is never passed over.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from tenure.store.contract import Claim

FULL_LOOK_SECONDS = 1.0
LARGE = 50
_MOST_RANKS = 32


class Marks:
    """The marks of one store object, per set of queues."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._books: dict[tuple[str, ...], _Book] = {}

    def give_times(self, claim: Claim) -> tuple[int | None, int | None] | None:
        """Up to when expired leases and jobs that come due were looked for; None asks for a full look."""
        with self._lock:
            book = self._fresh_book(claim)
            return None if book is None else (book.expired_us, book.due_us)

    def give(self, claim: Claim) -> str | None:
        """The marks for this claim as JSON; None asks for a full look."""
        if claim.kinds is not None or claim.affinity is not None:
            return None
        with self._lock:
            book = self._fresh_book(claim)
            if book is None:
                return None
            queues = book.queues if claim.limit >= LARGE else {}
            ranks = {name: [[rank, *mark] for rank, mark in known.items()] for name, known in queues.items()}
            return json.dumps({"expired": book.expired_us, "due": book.due_us, "queues": ranks})

    def _fresh_book(self, claim: Claim) -> _Book | None:
        book = self._books.get(tuple(claim.queues))
        return book if book is not None and time.monotonic() - book.looked <= FULL_LOOK_SECONDS else None

    def take(self, claim: Claim, granted: Any, *, full: bool) -> None:
        """Note where a claim stopped."""
        if claim.kinds is not None or claim.affinity is not None:
            return
        with self._lock:
            key = tuple(claim.queues)
            book = self._books.get(key)
            if book is None or full:
                book = self._books[key] = _Book(time.monotonic())
            book.expired_us, book.due_us = granted["expired"], granted["due"]
            for name, marks in granted["marks"]:
                ranks = book.queues.setdefault(name, {})
                for rank, run_at, job_id in marks:
                    ranks[rank] = (run_at, job_id)
                if len(ranks) > _MOST_RANKS:
                    del book.queues[name]


class _Book:
    __slots__ = ("due_us", "expired_us", "looked", "queues")

    def __init__(self, looked: float) -> None:
        self.looked = looked
        self.expired_us: int | None = None
        self.due_us: int | None = None
        self.queues: dict[str, dict[int, tuple[int, str]]] = {}

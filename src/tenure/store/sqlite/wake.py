"""Wake-ups (same process only so far)."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from tenure.store.sqlite.transaction import Transaction


class Hub:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._subscribers: dict[object, tuple[frozenset[str], Callable[[], None]]] = {}

    def tell(self, transaction: Transaction) -> None:
        for queues, wake in list(self._subscribers.values()):
            if transaction.stops or not queues.isdisjoint(transaction.woken):
                wake()

    def subscribe(self, queues: Sequence[str], wake: Callable[[], None]) -> Listening:
        listening = Listening(self)
        self._subscribers[listening] = (frozenset(queues), wake)
        return listening

    def drop(self, listening: object) -> None:
        self._subscribers.pop(listening, None)

    def abandon(self) -> list[sqlite3.Connection]:
        self._subscribers.clear()
        return []

    def close(self) -> None:
        self._subscribers.clear()


class Listening:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def close(self) -> None:
        self._hub.drop(self)

    def is_alive(self) -> bool:
        return True

"""What a benchmark of a user's own database asks of the store itself, past the front door."""

from __future__ import annotations

from typing import Literal

from tenure.store.contract import Store
from tenure.store.measuring import DropQueue, Measure
from tenure.store.summary import Inspect


def engine(store: Store) -> tuple[str, str]:
    """Which engine this is, and its version."""
    found = store.do(Inspect())
    return found.engine, found.version


def bare_seconds(store: Store, what: Literal["round_trip", "commit"], *, times: int, seconds: float) -> float:
    """How long the bare engine takes for one of them; ends after `times`, or after `seconds` altogether."""
    return store.do(Measure(what, times, seconds))


def drop_queue(store: Store, name: str, kind: str) -> int:
    """Delete a queue that holds nothing but jobs of `kind`, with all that hangs on them. Answers how many jobs went."""
    return store.do(DropQueue(name, kind))


def check_droppable(store: Store, name: str, kind: str) -> None:
    """Change nothing; raise what `drop_queue` would. Raises: IllegalMove, AccessDenied."""
    store.do(DropQueue(name, kind, is_trial=True))

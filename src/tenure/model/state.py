"""The states of a job and the moves between them, as one table.

Four readers share it: the code, the CHECK in both schemas, the tests over all pairs, and the diagram in the docs.
A pair that is absent is refused by every store and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """Where a job stands. Stored as its value."""

    QUEUED = "queued"
    LEASED = "leased"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Move(StrEnum):
    """What can happen to a job."""

    CLAIM = "claim"
    START = "start"
    HEARTBEAT = "heartbeat"
    COMPLETE = "complete"
    RETRY = "retry"
    EXHAUST = "exhaust"
    REJECT = "reject"
    RELEASE = "release"
    SUSPEND = "suspend"
    WAKE = "wake"
    EXPIRE = "expire"
    CANCEL = "cancel"
    REVIVE = "revive"


HELD = frozenset({State.LEASED, State.RUNNING})
"""A worker holds the job under a lease."""

TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.DEAD, State.CANCELLED})
"""The job has ended; `finished_at` is set exactly in these."""

ACTIVE = frozenset(State) - TERMINAL
"""The job is still to do: a key of scope `active` is taken in these."""


def _moves() -> Iterator[tuple[tuple[State, Move], frozenset[State]]]:
    yield (State.QUEUED, Move.CLAIM), frozenset({State.LEASED, State.RUNNING})  # running where it starts on claim
    yield (State.LEASED, Move.START), frozenset({State.RUNNING})
    for held in (State.LEASED, State.RUNNING):
        yield (held, Move.HEARTBEAT), frozenset({held, State.RUNNING})
        yield (held, Move.COMPLETE), frozenset({State.SUCCEEDED, State.CANCELLED})  # cancelled if that was asked for
        yield (held, Move.RETRY), frozenset({State.QUEUED, State.CANCELLED})
        yield (held, Move.EXHAUST), frozenset({State.DEAD, State.CANCELLED})
        yield (held, Move.REJECT), frozenset({State.FAILED, State.CANCELLED})
        yield (held, Move.RELEASE), frozenset({State.QUEUED, State.CANCELLED})
        yield (held, Move.SUSPEND), frozenset({State.WAITING, State.CANCELLED})
        yield (held, Move.EXPIRE), frozenset({State.QUEUED, State.DEAD, State.CANCELLED})
        yield (held, Move.CANCEL), frozenset({held, State.CANCELLED})  # a request first; its worker settles it
    yield (State.WAITING, Move.WAKE), frozenset({State.QUEUED})
    yield (State.QUEUED, Move.CANCEL), frozenset({State.CANCELLED})
    yield (State.WAITING, Move.CANCEL), frozenset({State.CANCELLED})
    for ended in (State.FAILED, State.DEAD, State.CANCELLED):
        yield (ended, Move.REVIVE), frozenset({State.QUEUED})


MOVES: Mapping[tuple[State, Move], frozenset[State]] = MappingProxyType(dict(_moves()))
"""From a state, by a move, to one of these states. Absent means refused."""


def can(state: State, move: Move) -> bool:
    """Whether `move` is in the table for `state`."""
    return (state, move) in MOVES


def absent_pairs() -> list[tuple[State, Move]]:
    """Every pair that every store must refuse."""
    return [(state, move) for state in State for move in Move if (state, move) not in MOVES]

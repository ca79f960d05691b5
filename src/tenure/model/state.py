"""The states of a job, the moves between them, and everything that each move does, as one table.

Five readers share it: the SQLite store carries the rules out, PostgreSQL's function `tenure.finish` is checked against
them row by row, the CHECK constraints of both schemas list the states, tests walk all pairs, and the lifecycle page
shows the table. A pair that is absent is refused by every store and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

from tenure.model.frozen import frozen


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

ISOLATE_FROM: Final = 1
"""From this suspicion on a job is run in a process of its own."""
ALONE_FROM: Final = 2
"""From this suspicion on a job is also run alone: its worker runs nothing else meanwhile."""
QUARANTINE_JOBS: Final = 3
"""A kind of which so many jobs crashed QUARANTINE_CRASHES times each within QUARANTINE_SECONDS is closed by itself: its
gate `kind:NAME` is shut until an operator opens it."""
QUARANTINE_CRASHES: Final = 2
QUARANTINE_SECONDS: Final = 600.0
SUSPICION_MAX: Final = 10
"""A job that was held by this many workers that vanished counts every further one as its own crash, so that the ladder
ends for workers that ignore suspicion too."""


@frozen
class Rule:
    """What one move does to a job, in one case of it. Applied in one transaction."""

    move: Move
    origin: frozenset[State]
    to: State
    when: str = ""
    """The case, in words. Empty: always."""
    attempt: int = 0
    """Added to `attempt`, which never falls below 0."""
    crashes: int = 0
    """Added to `crashes`: deaths of a process that are provably this job's own."""
    suspicion: Literal["keep", "clear", "raise", "isolate"] = "keep"
    """`raise` adds 1, `isolate` lifts it to at least ISOLATE_FROM."""
    run_at: Literal["keep", "now", "place", "backoff", "delay", "delay_or_keep", "delay_or_never"] = "keep"
    """`backoff` is now + the queue's backoff, unless the outcome names a delay; `place` is what it was before
    the job was suspended, so that work that was begun comes before new work."""
    frees_key: bool = False
    """A slot of scope `active` becomes free."""
    records_error: bool = False
    """`last_error` and `failure_class` are set."""
    attempt_row: str | None = None
    """The `outcome` of the attempt row that is written; None writes none."""
    dead_letter: bool = False
    resets: bool = False
    """`attempt` and `crashes` become 0 before they are counted, and a requested cancel is forgotten."""
    event: str | None = None
    """The lifecycle event, where the queue keeps events. None: none, or one per changed part (heartbeat)."""


def _held(move: Move, to: State, when: str = "", **does: object) -> Rule:
    return Rule(move, HELD, to, when, **does)  # type: ignore[arg-type]


_CANCEL_ASKED: Final = "a cancel was requested"
_LEFT: Final = "attempts are left"
_SPENT: Final = "no attempts are left"
_ALONE: Final = "its worker held nothing else, or suspicion is at its maximum"
_SHARED: Final = "its worker held other jobs too"

_PLAIN: Final[tuple[Rule, ...]] = (
    Rule(Move.CLAIM, frozenset({State.QUEUED}), State.LEASED, "the queue does not start on claim", 1, event="claimed"),
    Rule(Move.CLAIM, frozenset({State.QUEUED}), State.RUNNING, "the queue starts on claim", 1, event="claimed"),
    Rule(Move.START, frozenset({State.LEASED}), State.RUNNING, event="started"),
    Rule(Move.HEARTBEAT, frozenset({State.LEASED}), State.LEASED),
    Rule(Move.HEARTBEAT, HELD, State.RUNNING, "the worker says that it has started", event="started"),
    _held(Move.COMPLETE, State.SUCCEEDED, suspicion="clear", frees_key=True, event="completed"),
    _held(
        Move.RETRY,
        State.QUEUED,
        f"{_LEFT}; the failure is no crash",
        suspicion="clear",
        run_at="backoff",
        records_error=True,
        attempt_row="retried",
        event="retried",
    ),
    _held(
        Move.RETRY,
        State.QUEUED,
        f"{_LEFT}; the process of the handler died",
        crashes=1,
        suspicion="isolate",
        run_at="backoff",
        records_error=True,
        attempt_row="retried",
        event="retried",
    ),
    _held(
        Move.EXHAUST,
        State.DEAD,
        f"{_SPENT}; the failure is no crash",
        frees_key=True,
        records_error=True,
        attempt_row="dead",
        dead_letter=True,
        event="dead",
    ),
    _held(
        Move.EXHAUST,
        State.DEAD,
        f"{_SPENT}; the process of the handler died",
        crashes=1,
        frees_key=True,
        records_error=True,
        attempt_row="dead",
        dead_letter=True,
        event="dead",
    ),
    _held(
        Move.REJECT,
        State.FAILED,
        frees_key=True,
        records_error=True,
        attempt_row="failed",
        dead_letter=True,
        event="failed",
    ),
    _held(
        Move.RELEASE,
        State.QUEUED,
        "with a failure class",
        attempt=-1,
        run_at="delay_or_keep",
        attempt_row="released",
        event="released",
    ),
    _held(
        Move.RELEASE,
        State.QUEUED,
        "without a failure class: it only waited inside its worker",
        attempt=-1,
        run_at="delay_or_keep",
        event="released",
    ),
    _held(Move.SUSPEND, State.WAITING, attempt=-1, suspicion="clear", run_at="delay_or_never", event="suspended"),
    _held(
        Move.SUSPEND,
        State.QUEUED,
        "what it waits for has happened already, or it was woken while a worker held it",
        attempt=-1,
        suspicion="clear",
        event="woken",
    ),
    _held(
        Move.EXPIRE,
        State.QUEUED,
        f"{_SHARED}, and has vanished",
        attempt=-1,
        suspicion="raise",
        records_error=True,
        attempt_row="expired",
        event="reclaimed",
    ),
    _held(
        Move.EXPIRE,
        State.QUEUED,
        f"{_SHARED}, and is still seen alive",
        attempt=-1,
        records_error=True,
        attempt_row="expired",
        event="reclaimed",
    ),
    _held(
        Move.EXPIRE,
        State.QUEUED,
        f"{_ALONE}; {_LEFT}",
        crashes=1,
        suspicion="raise",
        records_error=True,
        attempt_row="expired",
        event="reclaimed",
    ),
    _held(
        Move.EXPIRE,
        State.DEAD,
        f"{_ALONE}; {_SPENT}",
        crashes=1,
        frees_key=True,
        records_error=True,
        attempt_row="expired",
        dead_letter=True,
        event="dead",
    ),
    *(
        _held(
            move,
            State.CANCELLED,
            _CANCEL_ASKED,
            frees_key=True,
            records_error=True,
            attempt_row="expired" if move is Move.EXPIRE else "cancelled",
            event="cancelled",
        )
        for move in (
            Move.COMPLETE,
            Move.RETRY,
            Move.EXHAUST,
            Move.REJECT,
            Move.RELEASE,
            Move.SUSPEND,
            Move.EXPIRE,
        )
    ),
    Rule(Move.CANCEL, frozenset({State.LEASED}), State.LEASED, "a request; its worker settles it"),
    Rule(Move.CANCEL, frozenset({State.RUNNING}), State.RUNNING, "a request; its worker settles it"),
    _held(
        Move.CANCEL,
        State.CANCELLED,
        "its worker has stopped the handler",
        frees_key=True,
        records_error=True,
        attempt_row="cancelled",
        event="cancelled",
    ),
    Rule(
        Move.CANCEL,
        frozenset({State.QUEUED, State.WAITING}),
        State.CANCELLED,
        frees_key=True,
        event="cancelled",
    ),
    Rule(Move.WAKE, frozenset({State.WAITING}), State.QUEUED, run_at="place", event="woken"),
    Rule(
        Move.REVIVE,
        frozenset({State.FAILED, State.DEAD, State.CANCELLED}),
        State.QUEUED,
        "an operator's act",
        suspicion="clear",
        run_at="now",
        resets=True,
        event="revived",
    ),
)

BAD_ENDS: Final = frozenset({State.FAILED, State.DEAD, State.CANCELLED})
"""A job that recorded something to undo is queued for that before it comes to one of these."""
_UNDO: Final = "it has something to undo first; the end that it is to have is recorded as its step `$undoing`"


def undo_first(rule: Rule) -> Rule:
    """What the move of `rule`, which ends a held job badly, does while the job has something to undo."""
    if rule.to is State.CANCELLED or rule.move is Move.REJECT:
        suspicion: Literal["keep", "clear", "raise", "isolate"] = "keep"
    elif rule.move is Move.EXPIRE:
        suspicion = "raise"
    else:
        suspicion = "isolate" if rule.crashes else "clear"
    return replace(
        rule,
        to=State.QUEUED,
        when="; ".join(filter(None, (rule.when, _UNDO))),
        suspicion=suspicion,
        frees_key=False,
        attempt_row="expired" if rule.move is Move.EXPIRE else "retried",
        dead_letter=False,
        resets=True,
        event="reclaimed" if rule.move is Move.EXPIRE else "retried",
    )


RULES: Final[tuple[Rule, ...]] = (
    *_PLAIN,
    *(undo_first(rule) for rule in _PLAIN if rule.origin == HELD and rule.to in BAD_ENDS),
    Rule(Move.CANCEL, frozenset({State.QUEUED, State.WAITING}), State.QUEUED, _UNDO, run_at="place", resets=True),
)
"""Every move in every case. The first rule that fits a case is carried out."""


def _targets() -> dict[tuple[State, Move], frozenset[State]]:
    found: dict[tuple[State, Move], frozenset[State]] = {}
    for rule in RULES:
        for state in rule.origin:
            found[state, rule.move] = found.get((state, rule.move), frozenset()) | {rule.to}
    return found


MOVES: Mapping[tuple[State, Move], frozenset[State]] = MappingProxyType(_targets())
"""From a state, by a move, to one of these states. Absent means refused."""


def end_rule(
    move: Move,
    *,
    cancel_requested: bool = False,
    attempts_left: bool = True,
    is_crash: bool = False,
    is_alone: bool = True,
    is_vanished: bool = True,
    has_class: bool = True,
    is_met: bool = False,
) -> Rule:
    """The rule for one end of an attempt. What a bad end does while there is something to undo, `undo_first` says.

    Args:
        move: COMPLETE, RETRY (a failure; EXHAUST follows from `attempts_left`), REJECT, RELEASE, SUSPEND, EXPIRE, or
            CANCEL for a handler that was stopped on request.
        is_crash: Of a failure: the process of the handler died.
        is_alone: Of an expiry: the worker held nothing else when the first of its leases ran out.
        is_vanished: Of an expiry: the worker has not been seen since.
        has_class: Of a release: it names a failure class.
        is_met: Of a suspend: what it waits for has happened already.
    """
    if cancel_requested or move is Move.CANCEL:
        return next(r for r in RULES if r.move is move and r.to is State.CANCELLED and r.origin == HELD)
    if move is Move.RETRY:
        move = Move.RETRY if attempts_left else Move.EXHAUST
        return _first(move, crashes=int(is_crash))
    if move is Move.RELEASE:
        return next(r for r in RULES if r.move is move and (r.attempt_row is not None) is has_class)
    if move is Move.EXPIRE and is_alone:
        return _first(move, crashes=1, to=State.QUEUED if attempts_left else State.DEAD)
    if move is Move.EXPIRE:
        return next(r for r in RULES if r.move is move and (r.suspicion == "raise") is is_vanished)
    if move is Move.SUSPEND:
        return _first(move, to=State.QUEUED if is_met else State.WAITING)
    return _first(move)


def _first(move: Move, *, crashes: int = 0, to: State | None = None) -> Rule:
    return next(r for r in RULES if r.move is move and r.crashes == crashes and (to is None or r.to is to))


def can(state: State, move: Move) -> bool:
    """Whether `move` is in the table for `state`."""
    return (state, move) in MOVES


def absent_pairs() -> list[tuple[State, Move]]:
    """Every pair that every store must refuse."""
    return [(state, move) for state in State for move in Move if (state, move) not in MOVES]

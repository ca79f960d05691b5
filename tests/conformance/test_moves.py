"""The table of moves, pair by pair: what is in it is reachable, what is not changes nothing."""

from __future__ import annotations

import pytest

from tenure.model.ids import Token
from tenure.model.job import Job
from tenure.model.outcome import Completed, Failed, Outcome, Rejected, Released, Stopped, Suspended
from tenure.model.state import HELD, MOVES, Move, State, absent_pairs
from tenure.model.step import NewStep
from tenure.store.contract import Heartbeat, Hold, Settle, Start, Wake
from tenure.store.flow import RecordSteps
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    attempts,
    bring,
    cancel,
    claim,
    get,
    letters,
    make_queue,
    reap,
    revive,
    settle,
)
from tests.conformance.engines import SteeredClock

PRESENT = sorted((state, move, target) for (state, move), targets in MOVES.items() for target in targets)


def an_end(move: Move, job: Job, token: Token) -> Outcome | None:
    match move:
        case Move.COMPLETE:
            return Completed(job.id, token)
        case Move.RETRY | Move.EXHAUST:
            return Failed(job.id, token, "boom")
        case Move.REJECT:
            return Rejected(job.id, token, "never")
        case Move.RELEASE:
            return Released(job.id, token)
        case Move.SUSPEND:
            return Suspended(job.id, token, "event")
        case _:
            return None


def try_move(store: Subject, clock: SteeredClock, job: Job, move: Move) -> None:
    """Make the move with the newest token there is, as a worker or an operator would."""
    outcome = an_end(move, job, job.token)
    if outcome is not None:
        store.do(Settle([outcome]))
        return
    match move:
        case Move.CLAIM:
            assert job.id not in [grant.id for grant in claim(store, 10, queues=[job.queue])]
        case Move.START:
            assert all(answer.lost for answer in store.do(Start([Hold(job.id, job.token)])))
        case Move.HEARTBEAT:
            assert store.do(Heartbeat([Hold(job.id, job.token, progress="1")])).lost == {job.id}
        case Move.WAKE:
            assert store.do(Wake([job.id])) == []
        case Move.EXPIRE:
            clock.advance(30 * 86_400)
            assert reap(store) == []
        case Move.CANCEL:
            assert cancel(store, job.id).answer == "refused"
        case Move.REVIVE:
            assert revive(store, job.id).state is None
        case _:
            raise AssertionError(move)


@pytest.mark.parametrize(("state", "move"), absent_pairs())
def test_a_move_that_is_not_in_the_table_changes_nothing(
    store: Subject, clock: SteeredClock, state: State, move: Move
) -> None:
    make_queue(store, start_on_claim=state is not State.LEASED)
    job = bring(store, state, "q")
    history = (attempts(store, job.id), letters(store, job.id))
    if (state, move) == (State.RUNNING, Move.START):
        # A running job stays so when it is started again; only a stranger's start is refused.
        assert store.do(Start([Hold(job.id, Token(job.token + 1))]))[0].lost
    else:
        try_move(store, clock, job, move)

    assert get(store, job.id) == job
    assert (attempts(store, job.id), letters(store, job.id)) == history


@pytest.mark.parametrize(("state", "move", "target"), PRESENT)
def test_a_move_that_is_in_the_table_leads_where_it_says(
    store: Subject, clock: SteeredClock, state: State, move: Move, target: State
) -> None:
    dies = target is State.DEAD
    starts = state is not State.LEASED and (state, move, target) != (State.QUEUED, Move.CLAIM, State.LEASED)
    make_queue(store, start_on_claim=starts, backoff=NO_BACKOFF, max_attempts=1 if dies else 3)
    undoes = target is State.QUEUED and move in {Move.COMPLETE, Move.REJECT, Move.CANCEL}
    job = bring_with_undo(store, state) if undoes else bring(store, state, "q")
    if state in HELD and (target is State.CANCELLED or (undoes and move is not Move.REJECT)):
        cancel(store, job.id)
    if (move, target) == (Move.SUSPEND, State.QUEUED):
        store.do(Wake([job.id]))

    make_move(store, clock, job, move, target)

    assert get(store, job.id).state is target


def bring_with_undo(store: Subject, state: State) -> Job:
    """A job in the wanted state that has something to undo, so that a bad end queues it for that first."""
    job = bring(store, state if state in HELD else State.RUNNING, "q")
    store.do(RecordSteps(job.id, job.token, (NewStep("$undo:a", kind="undo", state="armed"),)))
    if state is State.QUEUED:
        settle(store, Released(job.id, job.token))
    if state is State.WAITING:
        settle(store, Suspended(job.id, job.token, "event"))
    assert get(store, job.id).state is state
    return get(store, job.id)


def make_move(store: Subject, clock: SteeredClock, job: Job, move: Move, target: State) -> None:
    if move is Move.EXHAUST and target is State.CANCELLED:
        move = Move.RETRY  # how a failure ends is the store's choice; the request is the same
    outcome = an_end(move, job, job.token)
    if outcome is not None:
        assert not settle(store, outcome).lost
        return
    match move:
        case Move.CLAIM:
            claim(store, queues=[job.queue])
        case Move.START:
            store.do(Start([Hold(job.id, job.token)]))
        case Move.HEARTBEAT:
            store.do(Heartbeat([Hold(job.id, job.token, started=target is State.RUNNING)]))
        case Move.WAKE:
            store.do(Wake([job.id]))
        case Move.EXPIRE:
            clock.advance(61)
            reap(store)
        case Move.REVIVE:
            revive(store, job.id)
        case Move.CANCEL if target is not job.state and job.state in HELD:
            settle(store, Stopped(job.id, job.token))
        case Move.CANCEL:
            cancel(store, job.id)
        case _:
            raise AssertionError(move)


def test_every_state_is_brought_about(store: Subject) -> None:
    for state in State:
        make_queue(store, state.value, start_on_claim=state is not State.LEASED)
        assert bring(store, state, state.value).state is state

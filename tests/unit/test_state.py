"""The table of moves, over all pairs."""

from __future__ import annotations

import itertools

import pytest

from tenure.model.state import ACTIVE, HELD, MOVES, RULES, TERMINAL, Move, State, absent_pairs, can

# DESIGN's table, written down a second time by hand: state → the moves it allows.
ALLOWED: dict[State, set[str]] = {
    State.QUEUED: {"claim", "cancel"},
    State.LEASED: {
        "start",
        "heartbeat",
        "complete",
        "retry",
        "exhaust",
        "reject",
        "release",
        "suspend",
        "expire",
        "cancel",
    },
    State.RUNNING: {"heartbeat", "complete", "retry", "exhaust", "reject", "release", "suspend", "expire", "cancel"},
    State.WAITING: {"wake", "cancel"},
    State.SUCCEEDED: set(),
    State.FAILED: {"revive"},
    State.DEAD: {"revive"},
    State.CANCELLED: {"revive"},
}


@pytest.mark.parametrize(("state", "move"), list(itertools.product(State, Move)))
def test_a_pair_is_in_the_table_exactly_if_the_design_has_it(state: State, move: Move) -> None:
    assert can(state, move) is (move in ALLOWED[state])
    assert ((state, move) in absent_pairs()) is (move not in ALLOWED[state])


def test_absent_and_present_pairs_are_all_pairs() -> None:
    assert len(absent_pairs()) + len(MOVES) == len(State) * len(Move)


def test_success_is_final() -> None:
    assert not [move for move in Move if can(State.SUCCEEDED, move)]


def test_every_end_of_a_held_job_may_turn_out_to_be_the_cancel_that_was_asked_for() -> None:
    ends = [Move.COMPLETE, Move.RETRY, Move.EXHAUST, Move.REJECT, Move.RELEASE, Move.SUSPEND, Move.EXPIRE]

    assert all(State.CANCELLED in MOVES[held, end] for held in HELD for end in ends)


def test_only_held_jobs_can_succeed_or_die() -> None:
    into = {target: {state for (state, _), targets in MOVES.items() if target in targets} for target in State}

    assert into[State.SUCCEEDED] == into[State.DEAD] == into[State.FAILED] == HELD
    assert into[State.LEASED] == {State.QUEUED, State.LEASED}


def test_every_state_is_active_or_terminal_and_each_can_be_reached() -> None:
    assert set(State) == ACTIVE | TERMINAL
    assert not ACTIVE & TERMINAL
    assert HELD < ACTIVE
    assert {State.QUEUED} | {target for targets in MOVES.values() for target in targets} == set(State)


def test_a_terminal_job_moves_only_by_an_operators_hand() -> None:
    assert {move for (state, move) in MOVES if state in TERMINAL} == {Move.REVIVE}


def test_every_end_frees_the_key_and_nothing_else_does() -> None:
    assert {rule for rule in RULES if rule.frees_key} == {rule for rule in RULES if rule.to in TERMINAL}


def test_a_bad_end_by_a_worker_leaves_a_dead_letter_and_an_attempt_and_a_cancel_no_letter() -> None:
    ends = [rule for rule in RULES if rule.to in TERMINAL]

    assert {rule.to for rule in ends if rule.dead_letter} == {State.DEAD, State.FAILED}
    assert all(rule.dead_letter for rule in ends if rule.to in {State.DEAD, State.FAILED})
    assert all(rule.attempt_row for rule in ends if rule.origin == HELD and rule.to is not State.SUCCEEDED)

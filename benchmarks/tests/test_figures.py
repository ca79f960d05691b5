"""Medians, ratios within a round, and which figures are trusted."""

from __future__ import annotations

import pytest

from benchmarks.catalogue import CONTENDERS
from benchmarks.figures import Figures
from benchmarks.goals import EMPTY, Goal, judge
from benchmarks.report import plain
from benchmarks.run import Sample, Task, rounds_of
from benchmarks.workloads import WORKLOADS

CALM, BUSY = 30.0, 60.0


def sample(contender: str, number: int, rate: float, *, ms: float = CALM, workload: str = "W1") -> Sample:
    return Sample(workload, "postgres", contender, number, 100, {"rate": rate}, ms, ms, 150.0)


def test_a_figure_is_the_median_of_its_rounds() -> None:
    figures = Figures([sample("pgqueuer", n, rate) for n, rate in enumerate([100.0, 110.0, 90.0])])

    found = figures.figure("W1", "postgres", "pgqueuer", "rate")

    assert found is not None
    assert (found.value, found.rounds, found.is_trusted) == (100.0, 3, True)
    assert found.spread == pytest.approx(0.2)


def test_a_figure_whose_rounds_differ_by_more_than_thirty_percent_is_not_trusted() -> None:
    figures = Figures([sample("pgqueuer", n, rate) for n, rate in enumerate([100.0, 140.0, 100.0])])

    found = figures.figure("W1", "postgres", "pgqueuer", "rate")

    assert found is not None
    assert not found.is_trusted
    assert "40%" in found.reason


def test_a_busy_sample_is_left_out_while_two_calm_ones_remain() -> None:
    samples = [sample("pgqueuer", 0, 100.0), sample("pgqueuer", 1, 102.0), sample("pgqueuer", 2, 20.0, ms=BUSY)]

    found = Figures(samples).figure("W1", "postgres", "pgqueuer", "rate")

    assert found is not None
    assert (found.value, found.rounds, found.is_trusted) == (101.0, 2, True)


def test_a_figure_with_one_calm_sample_is_not_trusted() -> None:
    samples = [sample("pgqueuer", 0, 100.0), sample("pgqueuer", 1, 99.0, ms=BUSY)]

    found = Figures(samples).figure("W1", "postgres", "pgqueuer", "rate")

    assert found is not None
    assert not found.is_trusted
    assert found.reason == "the machine was busy"


def test_a_figure_of_one_round_is_not_trusted() -> None:
    found = Figures([sample("pgqueuer", 0, 100.0)]).figure("W1", "postgres", "pgqueuer", "rate")

    assert found is not None
    assert found.reason == "one round only"


def test_a_slow_disk_beside_a_sample_counts_as_busy() -> None:
    calm = Sample("W1", "postgres", "pgqueuer", 0, 100, {"rate": 1.0}, CALM, CALM, 150.0)
    slow = Sample("W1", "postgres", "pgqueuer", 1, 100, {"rate": 1.0}, CALM, CALM, 400.0)
    figures = Figures([calm, slow])

    assert [figures.is_busy(calm), figures.is_busy(slow)] == [False, True]


def test_a_ratio_is_taken_within_each_round() -> None:
    """Both sides halve in a slow spell; the ratio of medians would not notice, a ratio across rounds would lie."""
    samples = [sample("tenure", n, rate) for n, rate in enumerate([200.0, 100.0, 200.0])]
    samples += [sample("pgqueuer", n, rate) for n, rate in enumerate([100.0, 50.0, 100.0])]
    key = ("W1", "postgres", "tenure", "rate")

    found = Figures(samples).ratio(key, ("W1", "postgres", "pgqueuer", "rate"))

    assert found is not None
    assert (found.value, found.spread) == (2.0, 0.0)


@pytest.mark.parametrize(("tenure", "status"), [(131.0, "reached"), (129.0, "not reached")])
def test_a_goal_is_judged_against_the_best_peer(tenure: float, status: str) -> None:
    rates = {"tenure": tenure, "pgqueuer": 100.0, "pg-boss": 60.0, "bare-asyncpg": 900.0}
    figures = Figures([sample(name, n, rate) for n in range(2) for name, rate in rates.items()])

    verdict = judge(Goal("W1", "postgres", "rate", at_least=True, factor=1.3, against="best"), figures)

    assert (verdict.status, verdict.reference) == (status, "pgqueuer")


def test_a_goal_without_a_figure_says_why() -> None:
    empty = Sample("W1", "postgres", "tenure", 0, 100, {}, 0, 0, 0, "no answer within 240 s")

    verdict = judge(Goal("W1", "postgres", "rate", at_least=True, factor=1.3, against="best"), Figures([empty]))

    assert (verdict.status, verdict.reason) == ("not measured", "no answer within 240 s")


def test_a_goal_against_own_figures_uses_the_other_workload() -> None:
    samples = [sample("tenure", n, 100.0) for n in range(2)]
    samples += [sample("tenure", n, 290.0, workload="W1c") for n in range(2)]

    verdict = judge(Goal("W1c", "postgres", "rate", at_least=True, factor=3, against="own:W1:rate"), Figures(samples))

    assert verdict.status == "not reached"
    assert verdict.figure is not None
    assert verdict.figure.value == pytest.approx(2.9)


def test_a_goal_against_an_empty_store_uses_what_was_measured_beside_it() -> None:
    rates = {"tenure": 96.0, EMPTY: 100.0}
    samples = [sample(name, n, rate, workload="W5") for n in range(2) for name, rate in rates.items()]
    samples += [sample("tenure", n, 500.0, workload="W3a") for n in range(2)]

    verdict = judge(Goal("W5", "postgres", "rate", at_least=True, factor=0.95, against=EMPTY), Figures(samples))

    assert (verdict.status, verdict.reference) == ("reached", EMPTY)
    assert verdict.goal.text == "jobs/s ≥ 0.95 × own W3a beside it"


def test_tenure_and_what_it_is_held_against_are_measured_side_by_side_in_every_round() -> None:
    names = ("tenure", EMPTY, "graphile-worker", "pg-boss")
    tasks = [Task(WORKLOADS["W5"], "postgres", CONTENDERS[name], WORKLOADS["W5"].full) for name in names]

    rounds = [[task.contender.name for n, task in rounds_of(tasks, 4) if n == number] for number in range(4)]

    assert rounds == [
        ["tenure", EMPTY, "graphile-worker", "pg-boss"],
        ["graphile-worker", "pg-boss", EMPTY, "tenure"],
        ["pg-boss", "tenure", EMPTY, "graphile-worker"],
        [EMPTY, "tenure", "graphile-worker", "pg-boss"],
    ]


def test_only_a_store_that_was_filled_is_kept_for_the_next_round() -> None:
    size = WORKLOADS["W5"].full
    kept = {name: Task(WORKLOADS["W5"], "postgres", CONTENDERS[name], size).is_shared for name in ("tenure", EMPTY)}

    assert kept == {"tenure": True, EMPTY: False}


@pytest.mark.parametrize(("value", "text"), [(0.0, "0.00"), (0.0521, "0.052"), (1.204, "1.20"), (150.9, "151")])
def test_a_number_gets_as_many_digits_as_tell_it_from_its_goal(value: float, text: str) -> None:
    assert plain(value) == text

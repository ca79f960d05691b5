"""Charts of counted minutes: what is not counted yet is no zero, and every range has a bounded number of points."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from tenure.web.pages.charts import RANGES, Range, drawn

NOW = datetime(2026, 11, 18, 14, 32, 8, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@dataclass
class Row:
    at: datetime
    created: int = 0
    completed: int = 0
    failed: int = 0


def _range(word: str) -> Range:
    return next(one for one in RANGES if one.word == word)


def test_a_minute_that_is_not_counted_yet_is_not_drawn_as_zero() -> None:
    counted = NOW.replace(minute=30, second=0)
    rows = [Row(counted - MINUTE * n, created=60, completed=60) for n in range(1, 20)]

    chart = drawn(rows, _range("15m"), NOW, counted)

    assert [one.completed for one in chart.points] == [60] * 15
    assert chart.points[-1].at == counted - MINUTE
    assert chart.last.word == "14:29"
    assert chart.late_since is None


def test_where_no_worker_counts_the_axis_ends_now_and_the_line_where_counting_ended() -> None:
    counted = NOW.replace(hour=14, minute=20, second=0)
    rows = [Row(counted - MINUTE, created=60, completed=60)]

    chart = drawn(rows, _range("1h"), NOW, counted)

    assert chart.last.word == "14:31"
    assert chart.points[-1].at == counted - MINUTE
    assert chart.late_since == counted


@pytest.mark.parametrize("chosen", RANGES, ids=lambda one: one.word)
def test_every_range_ends_with_what_was_counted_last_and_has_a_bounded_number_of_points(chosen: Range) -> None:
    counted = NOW.replace(minute=30, second=0)
    rows = [Row(counted - MINUTE, created=30, completed=30)]

    chart = drawn(rows, chosen, NOW, counted)

    assert 2 <= len(chart.points) <= 120
    assert chart.points[-1].completed == 30
    assert sum(one.created for one in chart.points) == 30
    assert chart.points[-1].at + timedelta(seconds=chart.points[-1].seconds) == counted


def test_a_step_that_is_not_over_has_the_rate_of_its_part() -> None:
    counted = NOW.replace(minute=30, second=0)

    chart = drawn([Row(NOW.replace(minute=0, second=0), completed=1800)], _range("24h"), NOW, counted)

    assert chart.points[-1].succeeded_rate == 1.0


def test_a_database_that_has_counted_nothing_has_an_empty_chart() -> None:
    chart = drawn([], _range("15m"), NOW, None)

    assert chart.newest is not None
    assert chart.newest.succeeded_rate == 0
    assert chart.top == 1.0

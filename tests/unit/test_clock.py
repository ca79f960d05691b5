"""Moments as microseconds, exact both ways, and a clock that obeys."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from tenure.model.clock import ManualClock, SystemClock, from_us, to_us


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_moment_survives_the_way_to_microseconds_and_back(at: datetime) -> None:
    assert from_us(to_us(at)) == at


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))

    clock.advance(1.5)
    clock.advance(-0.25)

    assert clock.now() == datetime(2026, 3, 1, 0, 0, 1, 250_000, tzinfo=UTC)
    assert clock.now_us() == to_us(clock.now())


def test_the_system_clock_is_the_machines() -> None:
    before = time.time_ns() // 1000

    assert before <= SystemClock().now_us() <= time.time_ns() // 1000

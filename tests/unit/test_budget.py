"""Amounts, scopes and windows of budgets."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tenure.errors import InvalidArgument
from tenure.model.budget import (
    AMOUNT_MAX,
    MICRO,
    amounts_of,
    budget_name,
    check_scope,
    parts_of,
    plain_amount,
    raise_command,
    read_amount,
    show_amount,
    window_of,
)


@pytest.mark.parametrize(
    ("unit", "given", "stored"),
    [
        ("usd", "0.40", 400_000),
        ("usd", Decimal("1e-7"), 1),
        ("usd", 5, 5_000_000),
        ("usd", "0", 0),
        ("tokens", 20_000, 20_000),
        ("calls", "3", 3),
        ("seconds", 2.5, 2_500_000),
    ],
)
def test_an_amount_is_stored_as_a_whole_number(unit: str, given: Any, stored: int) -> None:
    assert read_amount(unit, given) == stored


@pytest.mark.parametrize("given", [0.4, 1e308, -1e308, "a lot", "-1", "NaN", "Infinity", True, None, 2**60, object()])
def test_what_is_no_amount_of_money_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match="usd"):
        read_amount("usd", given)


def test_the_largest_amount_is_one_and_the_next_is_not() -> None:
    assert read_amount("calls", AMOUNT_MAX) == AMOUNT_MAX
    assert read_amount("usd", Decimal(AMOUNT_MAX) / MICRO) == AMOUNT_MAX
    with pytest.raises(InvalidArgument, match="more than a budget can hold"):
        read_amount("calls", AMOUNT_MAX + 1)
    with pytest.raises(InvalidArgument, match="an amount is a whole number"):
        read_amount("usd", Decimal(AMOUNT_MAX + 1) / MICRO)


def test_a_float_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(InvalidArgument, match=r'usd="0\.40".*usd_micro=400000'):
        read_amount("usd", 0.4)


def test_a_limit_is_exact() -> None:
    assert amounts_of(usd="0.000001", is_limit=True) == {"usd": 1}
    with pytest.raises(InvalidArgument, match="six decimal places"):
        amounts_of(usd="0.0000015", is_limit=True)
    with pytest.raises(InvalidArgument, match="no decimal places"):
        amounts_of(tokens=1.5, is_limit=True)
    with pytest.raises(InvalidArgument, match="not both"):
        amounts_of(usd=1, usd_micro=1)


def test_amounts_are_shown_exactly() -> None:
    assert show_amount("usd", 1_234_567_890_123) == "1,234,567.890123 USD"
    assert show_amount("usd", 400_000) == "0.40 USD"
    assert show_amount("tokens", 20_000) == "20,000 tokens"
    assert show_amount("calls", 1) == "1 call"
    assert show_amount("seconds", 2_500_000) == "2.5 s"
    assert [read_amount("usd", plain_amount("usd", one)) for one in (0, 1, 400_000, 10**12)] == [0, 1, 400_000, 10**12]


def test_a_scope_with_colons_is_read_back_from_its_name() -> None:
    assert parts_of(budget_name("tenant:a:b:usd", "tokens", "day")) == ("tenant:a:b:usd", "tokens", "day")
    assert raise_command("tenant:a b", "usd", "day") == "tenure budgets raise 'tenant:a b' --usd AMOUNT --per day"


@pytest.mark.parametrize("scope", ["", "tenant", "tenant:", "people:7", " all", "job:7", "all:x", "kind:" + "x" * 300])
def test_a_scope_that_is_none_is_refused(scope: str) -> None:
    with pytest.raises(InvalidArgument, match="Nothing was changed"):
        check_scope(scope)


@pytest.mark.parametrize(
    ("per", "start", "end"),
    [
        ("hour", (2028, 2, 29, 23), (2028, 3, 1, 0)),
        ("day", (2028, 2, 29, 0), (2028, 3, 1, 0)),
        ("month", (2028, 2, 1, 0), (2028, 3, 1, 0)),
    ],
)
def test_windows_are_those_of_utc(per: str, start: tuple[int, int, int, int], end: tuple[int, int, int, int]) -> None:
    at = datetime.fromisoformat("2028-03-01T00:59:59.999999+01:00")

    assert window_of(per, at) == (datetime(*start, tzinfo=UTC), datetime(*end, tzinfo=UTC))
    assert window_of("total", at) is None

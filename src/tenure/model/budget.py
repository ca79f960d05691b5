"""Budgets: how much jobs may spend, by scope, unit and window of time.

Amounts are whole numbers. Money and seconds are counted in millionths, so that nothing is ever rounded by a binary
fraction; tokens and calls are counted as they are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any, Final

from tenure.errors import InvalidArgument
from tenure.model.frozen import frozen

UNITS: Final = ("usd", "tokens", "calls", "seconds")
PERIODS: Final = ("hour", "day", "month", "total")
ON_EMPTY: Final = ("park", "fail", "escalate")
"""What becomes of a job whose reservation does not fit. `park`: it waits until the window ends or the budget is raised.
`fail`: it ends as failed. `escalate`: it waits until a person raises the budget, whatever the window does."""
MICRO: Final = 1_000_000
SCALED: Final = frozenset({"usd", "seconds"})
"""Units that are counted in millionths."""
AMOUNT_MAX: Final = 2**53 - 1
SCOPE_CHARS: Final = 250
SCOPES: Final = ("all", "queue:NAME", "kind:NAME", "tenant:NAME", "workflow:ID", "job:ID")

_SCOPE: Final = re.compile(r"all|(queue|kind|tenant|workflow|job):[^\0]+", re.DOTALL)
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Amounts = Mapping[str, int]
"""Amounts by unit, in the numbers that are stored."""
Money = str | Decimal | int
"""An amount of dollars: text or a Decimal, or whole dollars as an int. Never a float."""


@frozen
class NewBudget:
    """A budget to set. `limit` is in millionths for usd and seconds."""

    scope: str
    unit: str
    limit: int
    per: str = "total"
    on_empty: str = "park"


@frozen
class Budget:
    """A budget as it stands. Amounts of usd and seconds are in millionths; `show_amount` writes them out."""

    scope: str
    unit: str
    per: str
    limit: int
    used: int
    """In this window."""
    reserved: int
    """By work that has not ended. It counts as used."""
    on_empty: str
    window_from: datetime | None
    """None for `total`."""
    window_until: datetime | None
    waiting: int
    """Jobs that wait for it."""
    updated_at: datetime
    waiting_since: datetime | None = None
    """Since when the first of them waits."""

    @property
    def left(self) -> int:
        """What may still be reserved; never below 0."""
        return max(0, self.limit - self.used - self.reserved)

    @property
    def name(self) -> str:
        """As a waiting job names it: `budget:tenant:7:usd:day`."""
        return budget_name(self.scope, self.unit, self.per)


@frozen
class Refusal:
    """Why a reservation was not made: the first budget in which it does not fit."""

    scope: str
    unit: str
    per: str
    limit: int
    used: int
    reserved: int
    asked: int
    on_empty: str
    window_seconds: float | None
    """Until the window ends; None if it has no end, or if the amount does not even fit in an unused budget."""

    @property
    def name(self) -> str:
        """As the waiting job names it."""
        return budget_name(self.scope, self.unit, self.per)

    def says(self) -> str:
        """In words."""
        taken = show_amount(self.unit, self.used + self.reserved)
        more = (
            f"{show_amount(self.unit, self.asked)} more were asked for"
            if self.asked
            else "what is asked for is unknown"
        )
        return (
            f"The budget {shown_name(self.scope, self.unit, self.per)} is used up for this: {taken} of "
            f"{show_amount(self.unit, self.limit)} are used or reserved, and {more}. "
            f"`{raise_command(self.scope, self.unit, self.per)}` raises it."
        )


def budget_name(scope: str, unit: str, per: str) -> str:
    """The condition that a job waits for."""
    return f"budget:{scope}:{unit}:{per}"


def parts_of(name: str) -> tuple[str, str, str]:
    """Scope, unit and window of `budget:SCOPE:UNIT:PER`. The scope may have colons of its own."""
    scope, unit, per = name.removeprefix("budget:").rsplit(":", 2)
    return scope, unit, per


def shown_name(scope: str, unit: str, per: str) -> str:
    """For people: `tenant:7 (usd per day)`."""
    return f"{scope} ({unit} in total)" if per == "total" else f"{scope} ({unit} per {per})"


def raise_command(scope: str, unit: str, per: str) -> str:
    """The command that raises a budget."""
    return f"tenure budgets raise {shlex.quote(scope)} --{unit} AMOUNT --per {per}"


def show_amount(unit: str, amount: int) -> str:
    """An amount with its unit, exact: `0.40 USD`, `20,000 tokens`, `1 call`, `2.5 s`."""
    if unit == "usd":
        whole, part = divmod(abs(amount), MICRO)
        digits = f"{part:06d}"
        return f"{'-' if amount < 0 else ''}{whole:,}.{digits[:2]}{digits[2:].rstrip('0')} USD"
    if unit == "seconds":
        return f"{plain_amount(unit, amount)} s"
    return f"{amount:,} {unit.removesuffix('s') if amount == 1 else unit}"


def plain_amount(unit: str, amount: int) -> str:
    """An amount as `read_amount` reads it: `0.4`, `20000`."""
    if unit not in SCALED:
        return str(amount)
    whole, part = divmod(abs(amount), MICRO)
    digits = f"{part:06d}".rstrip("0")
    return f"{'-' if amount < 0 else ''}{whole}{f'.{digits}' if digits else ''}"


def read_amount(unit: str, value: Any, *, is_limit: bool = False) -> int:
    """The number that is stored, from what a caller wrote.

    Money is a str, a Decimal or a whole number of dollars. What is spent is rounded up to a millionth; a limit must be
    exact. Raises: InvalidArgument.
    """
    if isinstance(value, bool) or value is None:
        raise InvalidArgument(f"{unit}: expected an amount, got {value!r}. Nothing was changed.")
    if isinstance(value, float) and unit == "usd" and abs(value) <= AMOUNT_MAX:
        raise InvalidArgument(
            f"usd: {value!r} is a float, and binary fractions cannot hold cents exactly. Write the amount as text, "
            f'`usd="{value:.2f}"`, as a Decimal, or in millionths, `usd_micro={round(value * MICRO)}`. '
            "Nothing was changed."
        )
    try:
        number = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
    except (InvalidOperation, TypeError, ValueError):
        raise InvalidArgument(f"{unit}: {value!r} is no amount. Write a number, as in {_example(unit)}.") from None
    if not number.is_finite() or number < 0:
        raise InvalidArgument(f"{unit}: an amount is 0 or more, not {value}. Nothing was changed.")
    if number > AMOUNT_MAX:
        raise InvalidArgument(f"{unit}: {value} is more than a budget can hold. Nothing was changed.")
    scaled = number * MICRO if unit in SCALED else number
    whole = int(scaled.to_integral_value(ROUND_CEILING))
    if is_limit and whole != scaled:
        places = "six decimal places" if unit in SCALED else "no decimal places"
        raise InvalidArgument(f"{unit}: a limit has {places} at most, got {value}. Nothing was changed.")
    return check_amount(unit, whole)


def amounts_of(
    *,
    usd: Any = None,
    usd_micro: Any = None,
    tokens: Any = None,
    calls: Any = None,
    seconds: Any = None,
    is_limit: bool = False,
) -> dict[str, int]:
    """Amounts by unit, as they are stored. Raises: InvalidArgument."""
    if usd is not None and usd_micro is not None:
        raise InvalidArgument("Give `usd` or `usd_micro`, not both. Nothing was changed.")
    given = {"usd": usd, "tokens": tokens, "calls": calls, "seconds": seconds}
    read = {unit: read_amount(unit, given[unit], is_limit=is_limit) for unit in UNITS if given.get(unit) is not None}
    return read if usd_micro is None else {"usd": check_amount("usd", usd_micro), **read}


def check_amount(unit: str, amount: Any) -> int:
    """An amount in the numbers that are stored. Raises: InvalidArgument."""
    if unit not in UNITS:
        raise InvalidArgument(f"A budget counts {', '.join(UNITS)}, not {unit!r}. Nothing was changed.")
    if isinstance(amount, bool) or not isinstance(amount, int) or not 0 <= amount <= AMOUNT_MAX:
        raise InvalidArgument(
            f"{unit}: an amount is a whole number from 0 to {AMOUNT_MAX:,}, got {amount!r}. Nothing was changed."
        )
    return amount


def check_scope(scope: Any) -> str:
    """A scope that a budget may have. Raises: InvalidArgument."""
    if not isinstance(scope, str) or len(scope) > SCOPE_CHARS or not _SCOPE.fullmatch(scope) or scope != scope.strip():
        raise InvalidArgument(
            f"A budget's scope is one of {', '.join(SCOPES)}, got {str(scope)[:100]!r}. Nothing was changed."
        )
    sort, _, name = scope.partition(":")
    if sort in ("workflow", "job") and not _UUID.fullmatch(name):
        raise InvalidArgument(f"{scope!r}: a {sort} is named by its id, a UUID in lower case. Nothing was changed.")
    return scope


def check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """One of several words. Raises: InvalidArgument."""
    if value not in allowed:
        raise InvalidArgument(f"{name}: {value!r} is none of {', '.join(allowed)}. Nothing was changed.")
    return str(value)


def window_of(per: str, at: datetime) -> tuple[datetime, datetime] | None:
    """The window around a moment, in UTC; None for `total`."""
    if per == "total":
        return None
    start = at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if per == "hour":
        return start, start + timedelta(hours=1)
    start = start.replace(hour=0)
    if per == "day":
        return start, start + timedelta(days=1)
    start = start.replace(day=1)
    return start, (start + timedelta(days=32)).replace(day=1)


def _example(unit: str) -> str:
    return '`usd="5.00"`' if unit == "usd" else f"`{unit}=100`"

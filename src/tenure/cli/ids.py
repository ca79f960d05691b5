"""Ids as people type and read them: any prefix that fits one job or approval, and the shortest that tells the listed
ones apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tenure.errors import InvalidArgument, NotFound, UsageError
from tenure.model.ids import id_prefix

if TYPE_CHECKING:
    from tenure.app import App

LEAST = 4
"""Fewer characters are more likely a slip than an id."""
SHORTEST = 13
"""The first two groups of an id. They are the time of its making, so what is shorter would seldom fit one job."""


def full_id(tenure: App, given: str) -> str:
    """The id of the one job that begins so. Raises: NotFound; UsageError, if several do; InvalidArgument."""
    return _full(given, "job", "jobs", lambda above: [one.id for one in tenure.jobs(limit=2, after=above)])


def full_approval_id(tenure: App, given: str) -> str:
    """The id of the one approval that begins so. Raises: as full_id."""

    def newest_below(above: str) -> list[str]:
        return [one.id for one in tenure.approvals.all(state=None, limit=2, after=above)]

    return _full(given, "approval", "inbox", newest_below)


def full_workflow_id(tenure: App, given: str) -> str:
    """The id of the one workflow that begins so. Raises: as full_id."""
    return _full(
        given, "workflow", "workflows", lambda above: [one.id for one in tenure.workflows.all(limit=2, after=above)]
    )


def full_ids(tenure: App, given: Sequence[str]) -> list[str]:
    """The same for several."""
    return [full_id(tenure, one) for one in given]


def short_ids(ids: Sequence[str]) -> list[str]:
    """Each id cut to what tells it from the others in the list."""
    ordered = sorted(set(ids))
    shared = max((_common(one, other) for one, other in pairwise(ordered)), default=0)
    length = max(SHORTEST, shared + 1)
    return [one[:length].rstrip("-") for one in ids]


def _full(given: str, what: str, noun: str, newest_below: Callable[[str], list[str]]) -> str:
    typed = id_prefix(given)
    if typed is None or len(typed[0]) < LEAST:
        article = "an" if what == "approval" else "a"
        raise InvalidArgument(
            f"{given!r} is no id of {article} {what}. Give the id as `tenure {noun} ls` shows it, or its first "
            f"characters, {LEAST} at least."
        )
    digits, above = typed
    if len(digits) == 32:
        return given
    found = [one for one in newest_below(above) if one.replace("-", "").startswith(digits)]
    if not found:
        raise NotFound(f"There is no {what} whose id begins with {given}. See `tenure {noun} ls`.")
    if len(found) > 1:
        raise UsageError(
            f"More than one {what}'s id begins with {given}, such as {' and '.join(found)}. Type more of it."
        )
    return found[0]


def _common(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))

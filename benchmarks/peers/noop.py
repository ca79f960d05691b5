"""Handlers for libraries that find theirs by import path; the worker process puts its tally here first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.peers.tally import Tally

tally: Tally | None = None


def noop(i: int, pad: str) -> None:  # noqa: ARG001 - the whole payload comes as arguments
    """Note the start and do nothing."""
    assert tally is not None
    tally.started(i)


async def async_noop(i: int, pad: str) -> None:  # noqa: ARG001 - as above
    """Note the start and do nothing."""
    assert tally is not None
    tally.started(i)

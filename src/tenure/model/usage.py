"""What the model calls of agents took: tokens and cost, as agent frameworks tell them in the steps of durable jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from tenure.model.frozen import frozen

BY: Final = ("agent", "kind", "job")
STEPS_MAX: Final = 10_000
"""How many steps one sum reads, those of the newest jobs first."""


@frozen
class UsageRow:
    """The model calls of one agent, kind or job."""

    name: str
    jobs: int
    calls: int
    input_tokens: int
    output_tokens: int
    usd_micro: int
    """Millionths of a dollar; 0 where the framework tells no cost."""


@frozen
class Usage:
    """Sums, the most tokens first."""

    rows: tuple[UsageRow, ...]
    is_cut: bool
    """There were more steps than one sum reads, so older jobs of the span are missing."""


def first_id(moment: datetime) -> str:
    """The lowest id of a job that was made at this moment: ids of jobs begin with the milliseconds since 1970."""
    milliseconds = max(0, int(moment.timestamp() * 1000))
    return str(UUID(int=milliseconds << 80))

"""Sums of what agents used. See model.usage."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tenure.model.frozen import frozen
from tenure.model.usage import STEPS_MAX, Usage
from tenure.store.contract import Request


@frozen
class SumUsage(Request[Usage]):
    """Add up `usage` in the values of steps of the jobs that were made in a span of time, by agent, kind or job.

    A step counts whose value is an object with an object `usage`: `input_tokens`, `output_tokens`, and `cost` in
    dollars. A number that is none, or is negative, counts as 0. Reads `steps` steps at most, those of the newest jobs
    first; a span is found by the ids of jobs, which begin with their time, so no other rows are walked. What an attempt
    used in a call that it did not live to record is not told.
    """

    by: str
    since: datetime | None = None
    until: datetime | None = None
    queues: Sequence[str] = ()
    kinds: Sequence[str] = ()
    limit: int = 100
    steps: int = STEPS_MAX
